// The emulator's turn-taking: fibers, barriers, warps, deferred copies.
#include "emu.h"

#include <stdlib.h>
#include <sys/mman.h>

#include <map>
#include <vector>

// Saves the registers that a call keeps, changes the stack, restores them from there.
asm(R"(
.text
.globl emu_switch
.hidden emu_switch
.type emu_switch, @function
emu_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
.size emu_switch, .-emu_switch
)");
extern "C" __attribute__((visibility("hidden"))) void emu_switch(void** save, void* load);

namespace emu {

namespace {

constexpr size_t STACK = 64 << 10;
constexpr u32 WARP = 32;
constexpr u32 THREADS_MAX = 1024;

enum State : u8 { READY, AT_BARRIER, IN_WARP, DONE };

struct Copy {
    void* to;
    const void* from;
    bool valid;
    u32 group;
};

struct Fiber {
    Here here;
    void* stack_pointer;
    State state;
    u32 groups;
    std::vector<Copy> copies;
};

struct Warp {
    void (*compute)(void**);
    void* operands[WARP];
    u32 arrived;
};

// Everything a thread of the host needs to run blocks.
struct Machine {
    std::vector<Fiber> fibers{THREADS_MAX};
    std::vector<Warp> warps{THREADS_MAX / WARP};
    u8* stacks = nullptr;
    Fiber* current = nullptr;
    void* scheduler = nullptr;
    const Run* run = nullptr;
    u32 at_barrier = 0, done = 0;
    const char* error = nullptr;
    u64 random = 0;
    std::vector<u8> dynamic_shared;
    std::map<const void*, std::vector<u8>> static_shared;
    std::map<const void*, bool> poisoned;

    Machine() {
        void* memory = mmap(nullptr, STACK * THREADS_MAX, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (memory == MAP_FAILED) abort();
        stacks = (u8*)memory;
    }
    ~Machine() { munmap(stacks, STACK * THREADS_MAX); }
};

Machine& machine() {
    static thread_local Machine machine;
    return machine;
}
// Read by every accessor, so it lies apart from the machine, which needs a guard.
thread_local Machine* active = nullptr;

void to_scheduler() {
    Fiber* fiber = active->current;
    emu_switch(&fiber->stack_pointer, active->scheduler);
}

void body() {
    Machine& m = *active;
    m.run->kernel->entry(m.run->params);
    Fiber& fiber = *m.current;
    if (m.at_barrier > 0) fail("divergent barrier: a thread ended while others wait");
    fiber.state = DONE;
    m.done++;
    to_scheduler();
    abort();
}

// Equal offsets in stacks of equal alignment would share cache sets, so each lane starts a little lower.
void prepare(Machine& m, u32 index) {
    Fiber& fiber = m.fibers[index];
    u8* top = m.stacks + STACK * (index + 1) - 64 - (index % WARP) * 448;
    void** slot = (void**)((uintptr_t)top & ~(uintptr_t)15);
    *--slot = nullptr;
    *--slot = (void*)body;
    for (int saved = 0; saved < 6; saved++) *--slot = nullptr;
    fiber.stack_pointer = slot;
    fiber.state = READY;
    fiber.groups = 0;
    fiber.copies.clear();
}

u32 draw(Machine& m, u32 below) {
    m.random ^= m.random << 13;
    m.random ^= m.random >> 7;
    m.random ^= m.random << 17;
    return (u32)((m.random >> 33) % below);
}

void order(Machine& m, u32* items, u32 count) {
    for (u32 i = 0; i < count; i++) items[i] = m.run->schedule == REVERSE ? count - 1 - i : i;
    if (m.run->schedule != RANDOM) return;
    for (u32 i = count; i > 1; i--) {
        u32 other = draw(m, i), kept = items[i - 1];
        items[i - 1] = items[other];
        items[other] = kept;
    }
}

// Runs a warp until none of its threads can go on; returns whether any did.
bool run_warp(Machine& m, u32 warp) {
    bool moved = false;
    u32 lanes[WARP];
    for (bool again = true; again && !m.error;) {
        again = false;
        order(m, lanes, WARP);
        for (u32 i = 0; i < WARP && !m.error; i++) {
            Fiber& fiber = m.fibers[warp * WARP + lanes[i]];
            if (fiber.state != READY) continue;
            m.current = &fiber;
            emu_switch(&m.scheduler, fiber.stack_pointer);
            again = moved = true;
        }
    }
    return moved;
}

void run_block(Machine& m, Dim block) {
    const Run& run = *m.run;
    m.at_barrier = m.done = 0;
    m.poisoned.clear();
    m.dynamic_shared.assign(run.shared_size + 128, 0xff);
    u8* shared = (u8*)(((uintptr_t)m.dynamic_shared.data() + 127) & ~(uintptr_t)127);
    for (u32 i = 0; i < run.threads; i++) {
        m.fibers[i].here = Here{i, run.threads, block, run.grid, shared};
        prepare(m, i);
    }
    u32 warps[THREADS_MAX / WARP], count = run.threads / WARP;
    for (u32 warp = 0; warp < count; warp++) m.warps[warp].arrived = 0;
    while (m.done < run.threads && !m.error) {
        bool moved = false;
        order(m, warps, count);
        for (u32 i = 0; i < count && !m.error; i++) moved |= run_warp(m, warps[i]);
        if (!moved && m.done < run.threads && !m.error)
            m.error = "divergent barrier or collective: no thread can go on";
    }
}

Kernel* kernels = nullptr;

} // namespace

void add(Kernel* kernel) {
    kernel->next = kernels;
    kernels = kernel;
}
Kernel* first_kernel() { return kernels; }

Here& here() { return active->current->here; }

void fail(const char* what) {
    active->error = what;
    // The scheduler starts no thread of this grid again.
    to_scheduler();
    abort();
}

void barrier() {
    Machine& m = *active;
    if (m.done > 0) fail("divergent barrier: a thread has ended before it");
    m.current->state = AT_BARRIER;
    if (++m.at_barrier < m.run->threads) return to_scheduler();
    m.at_barrier = 0;
    for (u32 i = 0; i < m.run->threads; i++) m.fibers[i].state = READY;
    // The last to come is no faster than the others.
    to_scheduler();
}

void collective(void (*compute)(void**), void* operands) {
    Machine& m = *active;
    u32 thread = m.current->here.thread;
    Warp& warp = m.warps[thread / WARP];
    if (warp.arrived == 0) warp.compute = compute;
    if (warp.compute != compute) fail("divergent collective: threads of a warp do different ones");
    warp.operands[thread % WARP] = operands;
    m.current->state = IN_WARP;
    if (++warp.arrived < WARP) return to_scheduler();
    warp.arrived = 0;
    compute(warp.operands);
    for (u32 lane = 0; lane < WARP; lane++) m.fibers[thread / WARP * WARP + lane].state = READY;
    to_scheduler();
}

void* shared(const void* key, size_t size) {
    Machine& m = *active;
    std::vector<u8>& memory = m.static_shared[key];
    if (memory.size() < size + 16) memory.resize(size + 16);
    if (!m.poisoned[key]) {
        memset(memory.data(), 0xff, memory.size());
        m.poisoned[key] = true;
    }
    return (void*)(((uintptr_t)memory.data() + 15) & ~(uintptr_t)15);
}

void copy_later(void* to, const void* from, bool valid) {
    check16(to);
    if (valid) check16(from);
    memset(to, 0xff, 16);
    active->current->copies.push_back(Copy{to, from, valid, active->current->groups});
}

void commit() { active->current->groups++; }

void wait_for_copies(u32 left) {
    Fiber& fiber = *active->current;
    size_t arrived = 0;
    for (; arrived < fiber.copies.size(); arrived++) {
        const Copy& copy = fiber.copies[arrived];
        if (copy.group + left >= fiber.groups) break;
        if (copy.valid) memcpy(copy.to, copy.from, 16);
        else memset(copy.to, 0, 16);
    }
    fiber.copies.erase(fiber.copies.begin(), fiber.copies.begin() + (ptrdiff_t)arrived);
}

const char* run(const Run& run) {
    if (run.threads == 0 || run.threads % WARP != 0 || run.threads > THREADS_MAX)
        return "a block is a multiple of 32 threads, at most 1024";
    Machine& m = machine();
    active = &m;
    m.run = &run;
    m.error = nullptr;
    m.random = run.seed * 0x9e3779b97f4a7c15ull + 0x632be59bd9b4e019ull;
    // Blocks come in any order on a GPU, too.
    u64 blocks = (u64)run.grid.x * run.grid.y * run.grid.z;
    u64 start = run.schedule == RANDOM ? draw(m, (u32)(blocks < ~0u ? blocks : ~0u)) : 0;
    for (u64 i = 0; i < blocks && !m.error; i++) {
        u64 index = run.schedule == REVERSE ? blocks - 1 - i : (start + i) % blocks;
        run_block(m, Dim{(u32)(index % run.grid.x), (u32)(index / run.grid.x % run.grid.y),
                         (u32)(index / run.grid.x / run.grid.y)});
    }
    active = nullptr;
    return m.error;
}

} // namespace emu
