// What steers a step from device memory, and what tests need.
#include "numbers.h"

// Takes the step's row of rates, then counts the step. One warp.
KS_KERNEL(step_advance, StepAdvance, 32, 1) {
    u32* step = ks_pointer<u32>(p.step);
    u32 now = *step, row = now < p.first ? 0 : now - p.first;
    // Past the end of the table the last rates stay.
    row = row < p.rows ? row : p.rows - 1;
    if (ks_thread() < 8)
        ks_pointer<float>(p.control)[ks_thread()] = ks_pointer<const float>(p.table)[8 * (u64)row + ks_thread()];
    ks_syncwarp();
    if (ks_thread() == 0) *step = now + 1;
}

// Writes what a step came to into its slot of a ring; the step's number comes last and makes the slot valid. One warp.
KS_KERNEL(metrics_push, MetricsPush, 32, 1) {
    u32 step = *ks_pointer<const u32>(p.step);
    volatile u32* slot = ks_pointer<volatile u32>(p.ring) + (u64)(step % p.slots) * p.width;
    u32 place = 1;
    KS_NO_UNROLL
    for (u32 source = 0; source < 4; source++) {
        if (ks_thread() < p.counts[source])
            slot[place + ks_thread()] = ks_pointer<const u32>(p.sources[source])[ks_thread()];
        place += p.counts[source];
    }
    ks_fence();
    ks_syncwarp();
    if (ks_thread() == 0) slot[0] = step;
}

// Fills memory with a pattern that is no number.
KS_KERNEL(poison, Poison, 256, 4) {
    u32* words = ks_pointer<u32>(p.words);
    KS_NO_UNROLL
    for (u32 item = ks_block_x() * 256 + ks_thread(); item < p.count; item += ks_blocks_x() * 256) words[item] = p.pattern;
}

// A hash of a buffer: of each word with its place, added up, so that the order of blocks doesn't matter.
KS_KERNEL(checksum, Checksum, 256, 4) {
    const u32* words = ks_pointer<const u32>(p.words);
    u64 sum = 0;
    KS_NO_UNROLL
    for (u32 item = ks_block_x() * 256 + ks_thread(); item < p.count; item += ks_blocks_x() * 256) {
        u64 z = ((u64)item + 1) * 0x9e3779b97f4a7c15ull + words[item];
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        sum += z ^ (z >> 31);
    }
    ks_atomic_add(ks_pointer<u64>(p.sum), sum);
}
