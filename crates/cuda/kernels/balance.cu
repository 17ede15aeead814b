// Loads of experts, and the losses of routers.
//
// Defined by `exec/src/reference/balance.rs`; the CPU's twin is `exec/src/cpu/balance.rs`. Loads are sums over the tokens of
// a sequence. Losses go over a few numbers for each sequence and expert: in f64, as on the CPU, since they cost nothing.
#include "block.cuh"

#define LAYERS 32

// The sum over a block of 256 threads, in an order of its own; every thread gets it.
__device__ inline double wide_sum(double x) {
    __shared__ double part[256];
    __syncthreads();
    part[threadIdx.x] = x;
    __syncthreads();
    for (int half = 128; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    return part[0];
}

// P and c of one sequence (blockIdx.y) and 32 experts, by 32 × 16 threads: thread (x, y) adds tokens y, y + 16, ….
KERNEL(512)
expert_load(const float* p, const int* indices, const int* marks, float* sums, float* counts, int length, int experts,
            int chosen, int ignored, u64* check) {
    __shared__ float part[2][16][33];
    int expert = blockIdx.x * 32 + threadIdx.x, first = blockIdx.y * length;
    float sum = 0.0f, count = 0.0f;
    for (int token = first + threadIdx.y; token < first + length; token += 16) {
        for (int i = threadIdx.x; blockIdx.x == 0 && i < chosen; i += 32) {
            int index = indices[i64(token) * chosen + i];
            if (index < 0 || index >= experts) report(check, i64(token) * chosen + i, index);
        }
        if (expert >= experts || marks[token] == ignored) continue;
        sum += p[i64(token) * experts + expert];
        for (int i = 0; i < chosen; i++) count += indices[i64(token) * chosen + i] == expert ? 1.0f : 0.0f;
    }
    part[0][threadIdx.y][threadIdx.x] = sum, part[1][threadIdx.y][threadIdx.x] = count;
    __syncthreads();
    if (threadIdx.y > 1 || expert >= experts) return;
    float total = 0.0f;
    for (int y = 0; y < 16; y++) total += part[threadIdx.y][y][threadIdx.x];
    (threadIdx.y == 0 ? sums : counts)[i64(blockIdx.y) * experts + expert] = total;
}

// The copies of present tokens sent to one expert (blockIdx.x), and those of them that have a row.
KERNEL(256)
count_copies(const int* indices, const int* places, const int* present, float* counts, i64 copies, int chosen, u64* check) {
    int expert = blockIdx.x, experts = gridDim.x;
    float sent = 0.0f, placed = 0.0f;
    for (i64 i = threadIdx.x; i < copies; i += 256) {
        int index = indices[i];
        if (expert == 0 && (index < 0 || index >= experts)) report(check, i, index);
        if (index != expert || present[i / chosen] == 0) continue;
        sent += 1.0f;
        placed += places[i] >= 0 ? 1.0f : 0.0f;
    }
    sent = block_sum(sent), placed = block_sum(placed);
    if (threadIdx.x > 0) return;
    counts[expert] = sent, counts[experts + expert] = placed;
}

// dp[token] = dP of its sequence.
KERNEL(256)
expert_load_grad(const float* dsums, const int* marks, float* dp, i64 count, int length, int experts, int ignored) {
    i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    i64 token = i / experts;
    dp[i] = marks[token] == ignored ? 0.0f : dsums[token / length * experts + i % experts];
}

struct Layers {
    const float* of[LAYERS];
};

// Adds up to 32 layers, in their order; `adds` says that earlier ones are there.
KERNEL(256) sum_layers(Layers layers, double* sums, i64 count, int number, int adds) {
    i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i >= count) return;
    double sum = adds ? sums[i] : 0.0;
    for (int layer = 0; layer < number; layer++) sum += layers.of[layer][i];
    sums[i] = sum;
}

struct Balance {
    int sequences, experts, chosen, layers;
    int targets, ignored; // number of targets, and the one without a loss
};

// The derivative of the loss with respect to the probabilities of a sequence, over the loss's factor, given to `each` with
// its element. One block for each sequence.
template <class Each> __device__ inline void of_sequence(const double* counts, const Balance& balance, Each each) {
    double tokens = 0.0;
    i64 row = i64(blockIdx.x) * balance.experts;
    for (int expert = threadIdx.x; expert < balance.experts; expert += 256) tokens += counts[row + expert];
    tokens = wide_sum(tokens) / balance.chosen;
    double factor = tokens > 0.0 ? balance.experts / (balance.layers * tokens) : 0.0;
    for (int expert = threadIdx.x; expert < balance.experts; expert += 256)
        each(row + expert, factor * counts[row + expert]);
}

// The same where all sequences are one group. One block.
template <class Each>
__device__ inline void of_all(const double* counts, const int* targets, const Balance& balance, Each each) {
    i64 all = i64(balance.sequences) * balance.experts;
    double tokens = 0.0, valid = 0.0;
    for (i64 i = threadIdx.x; i < all; i += 256) tokens += counts[i];
    for (int i = threadIdx.x; i < balance.targets; i += 256) valid += targets[i] != balance.ignored;
    tokens = wide_sum(tokens) / balance.chosen, valid = wide_sum(valid);
    double factor = tokens > 0.0 ? valid * balance.experts / (tokens * tokens) : 0.0;
    for (int expert = threadIdx.x; expert < balance.experts; expert += 256) {
        double count = 0.0;
        for (i64 i = expert; i < all; i += balance.experts) count += counts[i];
        for (i64 i = expert; i < all; i += balance.experts) each(i, factor * count);
    }
}

// The loss of each sequence, or of all as the only one, over its scale.
KERNEL(256)
balance_loss(const double* counts, const double* sums, const int* targets, double* losses, int whole, Balance balance) {
    double loss = 0.0;
    auto add = [&](i64 i, double derivative) { loss += derivative * sums[i]; };
    if (whole) of_all(counts, targets, balance, add);
    else of_sequence(counts, balance, add);
    loss = wide_sum(loss);
    if (threadIdx.x == 0) losses[blockIdx.x] = loss;
}

// Adds losses in their order. One block.
KERNEL(32) finish_loss(const double* losses, const float* scale, float* loss, int number) {
    if (threadIdx.x > 0) return;
    double sum = 0.0;
    for (int i = 0; i < number; i++) sum += losses[i];
    *loss = float(double(*scale) * sum);
}

KERNEL(256)
balance_loss_grad(const double* counts, const float* dloss, const float* scale, const int* targets, float* dsums, int whole,
                  Balance balance) {
    double factor = double(*dloss) * double(*scale);
    auto set = [&](i64 i, double derivative) { dsums[i] = float(factor * derivative); };
    if (whole) of_all(counts, targets, balance, set);
    else of_sequence(counts, balance, set);
}

// Σ lse² of the valid tokens in each chunk of 4096, over the scale.
KERNEL(256) router_z_loss(const int* targets, const float* lse, double* losses, i64 count, int ignored) {
    double sum = 0.0;
    i64 last = min(count, (i64(blockIdx.x) + 1) * 4096);
    for (i64 i = i64(blockIdx.x) * 4096 + threadIdx.x; i < last; i += 256)
        if (targets[i] != ignored) sum += double(lse[i]) * double(lse[i]);
    sum = wide_sum(sum);
    if (threadIdx.x == 0) losses[blockIdx.x] = sum;
}

KERNEL(256)
router_z_loss_grad(const float* dloss, const float* scale, const int* targets, const float* lse, float* dlse, i64 count,
                   int ignored) {
    i64 i = i64(blockIdx.x) * 256 + threadIdx.x;
    if (i < count) dlse[i] = targets[i] == ignored ? 0.0f : 2.0f * *dloss * *scale * lse[i];
}
