// Runs the blocks of a launch one after the other, each with its threads as fibers.
#include "cuda_on_host.h"

#include <cstdio>
#include <cstdlib>
#include <ucontext.h>
#include <vector>

uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

const unsigned STACK = 64 * 1024, MOST_THREADS = 1024;

enum State { RUNNING, AT_BLOCK, AT_WARP, ENDED };

struct Fiber {
    ucontext_t context;
    char* stack = nullptr;
    State state = ENDED;
    unsigned slot = 0; // what this thread offers its warp
    const void* shown = nullptr;
};

Fiber fibers[MOST_THREADS];
ucontext_t scheduler;
unsigned current, threads;
void (*kernel)(void**);
void** arguments;
alignas(256) char shared[256 * 1024];

void start() {
    kernel(arguments);
    fibers[current].state = ENDED;
    swapcontext(&fibers[current].context, &scheduler);
}

void wait(State state) {
    fibers[current].state = state;
    swapcontext(&fibers[current].context, &scheduler);
}

// Lets go all fibers first … last that wait as `state` says, if every one of them that has not ended does.
bool release(unsigned first, unsigned last, State state) {
    bool any = false;
    for (unsigned i = first; i < last; i++) {
        if (fibers[i].state == ENDED) continue;
        if (fibers[i].state != state) return false;
        any = true;
    }
    for (unsigned i = first; any && i < last; i++)
        if (fibers[i].state == state) fibers[i].state = RUNNING;
    return any;
}

void run_block() {
    for (unsigned i = 0; i < threads; i++) {
        Fiber& fiber = fibers[i];
        if (!fiber.stack) fiber.stack = (char*)std::malloc(STACK);
        getcontext(&fiber.context);
        fiber.context.uc_stack.ss_sp = fiber.stack;
        fiber.context.uc_stack.ss_size = STACK;
        fiber.context.uc_link = nullptr;
        makecontext(&fiber.context, start, 0);
        fiber.state = RUNNING;
    }
    // Shared memory holds nothing that a block may rely on.
    std::memset(shared, 0xff, sizeof shared);
    for (;;) {
        bool ran = false, left = false;
        for (current = 0; current < threads; current++) {
            if (fibers[current].state != RUNNING) continue;
            threadIdx = {current % blockDim.x, current / blockDim.x, 0};
            swapcontext(&scheduler, &fibers[current].context);
            ran = true;
        }
        for (unsigned i = 0; i < threads; i++) left |= fibers[i].state != ENDED;
        if (!left) return;
        bool released = release(0, threads, AT_BLOCK);
        for (unsigned first = 0; first < threads; first += 32)
            released |= release(first, first + 32 < threads ? first + 32 : threads, AT_WARP);
        if (!ran && !released) {
            std::fprintf(stderr, "threads of a block wait for each other at different places\n");
            std::abort();
        }
    }
}

} // namespace

void __syncthreads() { wait(AT_BLOCK); }
void host_sync_warp() { wait(AT_WARP); }
float* host_dynamic_shared() { return (float*)shared; }

unsigned host_exchange(unsigned bits, int lane_xor) {
    unsigned self = current;
    fibers[self].slot = bits;
    host_sync_warp();
    unsigned other = fibers[self ^ unsigned(lane_xor)].slot;
    host_sync_warp();
    return other;
}

void host_show(const void* address) {
    fibers[current].shown = address;
    host_sync_warp();
}

const void* host_shown(int lane) { return fibers[current / 32 * 32 + unsigned(lane)].shown; }

extern "C" __attribute__((visibility("default"))) void host_launch(void (*call)(void**), const unsigned* grid,
                                                                   const unsigned* block, void** args) {
    kernel = call;
    arguments = args;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {block[0], block[1], 1};
    threads = block[0] * block[1];
    for (unsigned z = 0; z < grid[2]; z++)
        for (unsigned y = 0; y < grid[1]; y++)
            for (unsigned x = 0; x < grid[0]; x++) {
                blockIdx = {x, y, z};
                run_block();
            }
}
