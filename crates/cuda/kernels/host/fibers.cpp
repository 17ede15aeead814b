// Runs the blocks of a launch one after the other, each with its threads as fibers.
//
// A fiber is entered once through its context and lives on: it runs its thread of every block. Switches are jumps,
// because a switch of contexts asks the system for the signal mask each time. Every system thread has fibers and shared
// memory of its own, so several launches may run side by side.
#include "cuda_on_host.h"

#include <csetjmp>
#include <cstdio>
#include <cstdlib>
#include <ucontext.h>

thread_local uint3 threadIdx, blockIdx, blockDim, gridDim;

namespace {

const unsigned STACK = 64 * 1024, MOST_THREADS = 1024;

enum State { RUNNING, AT_BLOCK, AT_WARP, ENDED };

struct Fiber {
    jmp_buf place;
    char* stack = nullptr;
    State state = ENDED;
    unsigned slot = 0; // what this thread offers its warp
    const void* shown = nullptr;
};

thread_local Fiber fibers[MOST_THREADS];
thread_local jmp_buf scheduler;
thread_local unsigned current, threads;
thread_local void (*kernel)(void**);
thread_local void** arguments;
alignas(256) thread_local char shared[256 * 1024];
thread_local bool shared_is_soiled = false;

void wait(State state) {
    fibers[current].state = state;
    if (!_setjmp(fibers[current].place)) _longjmp(scheduler, 1);
}

void run_threads() {
    for (;;) {
        kernel(arguments);
        wait(ENDED);
    }
}

// Runs the current fiber until it waits or ends.
void resume() {
    Fiber& fiber = fibers[current];
    if (_setjmp(scheduler)) return;
    if (fiber.stack) _longjmp(fiber.place, 1);
    fiber.stack = (char*)std::malloc(STACK);
    ucontext_t context;
    getcontext(&context);
    context.uc_stack.ss_sp = fiber.stack;
    context.uc_stack.ss_size = STACK;
    context.uc_link = nullptr;
    makecontext(&context, run_threads, 0);
    setcontext(&context);
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

// Shared memory holds nothing that a block may rely on.
void soil_shared() {
    if (shared_is_soiled) return;
    std::memset(shared, 0xff, sizeof shared);
    shared_is_soiled = true;
}

void run_block() {
    for (unsigned i = 0; i < threads; i++) fibers[i].state = RUNNING;
    soil_shared();
    for (;;) {
        bool ran = false, left = false;
        for (current = 0; current < threads; current++) {
            if (fibers[current].state != RUNNING) continue;
            threadIdx = {current % blockDim.x, current / blockDim.x, 0};
            resume();
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
float* host_dynamic_shared() {
    shared_is_soiled = false;
    return (float*)shared;
}

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
