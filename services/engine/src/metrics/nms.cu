// Detections of an image from decoded scores: candidates above the confidence, the surest of them in order, those that no
// surer one overlaps; and which of them are right. The rules are those of metrics/{candidates,nms,matching}.rs.
#include "head.h"

#define SORT_MAX 4096
#define LABELS_MAX 1024

// A score and its place, in one key that is largest for the largest score and, of equals, the first place.
KS_FN void list_candidate(const FilterScores& p, u32 image, float score, u32 place) {
    u32 at = ks_atomic_add(ks_pointer<u32>(p.counts) + image, 1);
    // What doesn't fit is counted: the host reports it.
    if (at < p.capacity) ks_pointer<u64>(p.candidates)[(u64)image * p.capacity + at] = key_of(score, place);
}

// Lists what is above the confidence, in no order; a thread is an anchor. Counts are zero before.
KS_KERNEL(filter_scores, FilterScores, 256, 4) {
    u32 row = ks_block_x() * 256 + ks_thread();
    if (row >= p.rows) return;
    u32 image = ks_quotient(row, p.by_anchors), anchor = row - image * p.by_anchors.divisor;
    const float* scores = ks_pointer<const float>(p.scores) + (u64)row * p.classes;
    float best = scores[0];
    u32 best_class = 0;
    KS_NO_UNROLL
    for (u32 type = 0; type < p.classes; type++) {
        float score = scores[type];
        if (p.multi_label && score > p.confidence) list_candidate(p, image, score, anchor * p.classes + type);
        if (score > best || best != best) {
            best = score;
            best_class = type;
        }
    }
    if (!p.multi_label && best > p.confidence) list_candidate(p, image, best, anchor * p.classes + best_class);
}

// The surest candidates of an image in order, a block an image: the bits of the keys are decided from the top, eight at
// a time, until as many are left as are wanted; those are sorted. The list's own order doesn't show.
KS_KERNEL(filter_topk, FilterTopk, 256, 1) {
    KS_SHARED(u64, keys, SORT_MAX);
    KS_SHARED(u32, bins, 256);
    KS_SHARED(u32, state, 4);
    u32 image = ks_block_x(), count = ks_pointer<const u32>(p.counts)[image];
    count = count < p.capacity ? count : p.capacity;
    const u64* list = ks_pointer<const u64>(p.candidates) + (u64)image * p.capacity;
    u32 wanted = count < p.limit ? count : p.limit;
    // Keys whose top bits equal `prefix` are still in question; `left` of them are wanted.
    u64 prefix = 0;
    u32 left = wanted, bits = 64;
    KS_NO_UNROLL
    while (bits > 0 && count > p.limit) {
        bits -= 8;
        bins[ks_thread()] = 0;
        ks_sync();
        KS_NO_UNROLL
        for (u32 item = ks_thread(); item < count; item += 256) {
            u64 key = list[item];
            if (bits == 56 || key >> (bits + 8) == prefix) ks_atomic_add(bins + (u32)(key >> bits & 255), 1);
        }
        ks_sync();
        if (ks_thread() == 0) {
            u32 bin = 255, need = left;
            while (bin > 0 && bins[bin] < need) need -= bins[bin--];
            state[0] = bin;
            state[1] = need;
        }
        ks_sync();
        prefix = prefix << 8 | state[0];
        left = state[1];
    }
    ks_sync();
    // Keys are unique: with all bits decided, exactly as many as are wanted reach the prefix.
    if (ks_thread() == 0) state[2] = 0;
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < SORT_MAX; item += 256) keys[item] = 0;
    ks_sync();
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < count; item += 256) {
        u64 key = list[item];
        if (count <= p.limit || key >= prefix) keys[ks_atomic_add(state + 2, 1)] = key;
    }
    // Bitonic, the largest first, over the next power of two.
    u32 size = 1;
    while (size < wanted) size *= 2;
    KS_NO_UNROLL
    for (u32 run = 2; run <= size; run *= 2) {
        KS_NO_UNROLL
        for (u32 step = run / 2; step > 0; step /= 2) {
#ifndef MUT_NO_BARRIER_SORT
            ks_sync();
#endif
            KS_NO_UNROLL
            for (u32 item = ks_thread(); item < size; item += 256) {
                u32 other = item ^ step;
                if (other <= item) continue;
                u64 a = keys[item], b = keys[other];
                bool falls = (item & run) == 0;
                if (falls ? a < b : a > b) {
                    keys[item] = b;
                    keys[other] = a;
                }
            }
        }
    }
    ks_sync();
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < wanted; item += 256) {
        u32 place = index_of(keys[item]), anchor = ks_quotient(place, p.by_classes);
        u64 to = (u64)image * p.limit + item;
        Box box = read_box(p.boxes, (u64)image * p.anchors + anchor);
        ks_st16(ks_pointer<float>(p.sorted_boxes) + 4 * to,
                V4{ks_bits(box.x1), ks_bits(box.y1), ks_bits(box.x2), ks_bits(box.y2)});
        ks_st16(ks_pointer<u32>(p.sorted) + 4 * to,
                V4{(u32)(keys[item] >> 32), place - anchor * p.by_classes.divisor, anchor, 0});
    }
    if (ks_thread() == 0) ks_pointer<u32>(p.sorted_counts)[image] = wanted;
}

KS_FN bool overlaps(const Box& a, const Box& b, float threshold) {
    float width = ks_min(a.x2, b.x2) - ks_max(a.x1, b.x1), height = ks_min(a.y2, b.y2) - ks_max(a.y1, b.y1);
    if (width <= 0.0f || height <= 0.0f) return false;
    float shared = width * height;
    float sum = (a.x2 - a.x1) * (a.y2 - a.y1) + (b.x2 - b.x1) * (b.y2 - b.y1);
    return ks_divide(shared, sum - shared) > threshold;
}

// Which later candidates each one overlaps: a block is 64 candidates (y) against 64 (x) of image z, a thread a row.
KS_KERNEL(nms_mask, Nms, 64, 8) {
    KS_SHARED(Box, boxes, 64);
    KS_SHARED(u32, types, 64);
    u32 image = ks_block_z(), count = ks_pointer<const u32>(p.sorted_counts)[image];
    u32 first = ks_block_x() * 64, row = ks_block_y() * 64 + ks_thread(), column = first + ks_thread();
    if (ks_block_x() < ks_block_y() || ks_block_y() * 64 >= count) return;
    u64 start = (u64)image * p.limit;
    if (column < count) {
        boxes[ks_thread()] = read_box(p.sorted_boxes, start + column);
        types[ks_thread()] = ks_pointer<const u32>(p.sorted)[4 * (start + column) + 1];
    }
    ks_sync();
    if (row >= count) return;
    Box own = read_box(p.sorted_boxes, start + row);
    u32 type = ks_pointer<const u32>(p.sorted)[4 * (start + row) + 1];
    u64 bits = 0;
    KS_NO_UNROLL
    for (u32 other = 0; other < 64; other++) {
        if (first + other <= row || first + other >= count) continue;
        bool meets = (p.agnostic || types[other] == type) && overlaps(own, boxes[other], p.threshold);
        bits |= (u64)meets << other;
    }
    ks_pointer<u64>(p.mask)[(start + row) * p.words + ks_block_x()] = bits;
}

// Keeps what no kept one overlaps, in order; one warp an image.
KS_KERNEL(nms_scan, Nms, 32, 16) {
    KS_SHARED(u64, removed, SORT_MAX / 64);
    u32 image = ks_block_x(), count = ks_pointer<const u32>(p.sorted_counts)[image], lane = ks_thread();
    u64 start = (u64)image * p.limit;
    KS_NO_UNROLL
    for (u32 word = lane; word < SORT_MAX / 64; word += 32) removed[word] = 0;
    ks_syncwarp();
    u32 kept = 0;
    KS_NO_UNROLL
    for (u32 row = 0; row < count && kept < p.detections_max; row++) {
        bool is_kept = (removed[row / 64] >> (row % 64) & 1) == 0;
        ks_syncwarp();
        if (is_kept) {
            const u64* mask = ks_pointer<const u64>(p.mask) + (start + row) * p.words;
            // Words before the row's own were never written.
            KS_NO_UNROLL
            for (u32 word = row / 64 + lane; word * 64 < count; word += 32) removed[word] |= mask[word];
            if (lane == 0) ks_pointer<u32>(p.kept)[(u64)image * p.detections_max + kept] = row;
            kept++;
        }
        ks_syncwarp();
    }
    if (lane == 0) ks_pointer<u32>(p.kept_counts)[image] = kept;
}

KS_FN bool is_of_size(u32 size, float area) {
    return size == 0 ? true : size == 1 ? area <= 1024.0f : size == 2 ? area >= 1024.0f && area <= 9216.0f : area >= 9216.0f;
}
KS_FN float area_of(const Box& box) { return (box.x2 - box.x1) * (box.y2 - box.y1); }

// Judges an image's detections, which come in order: a thread is a range of sizes and a threshold, and goes through them
// alone. A hit takes a label; what takes one of another size, or none and is of another size itself, doesn't count.
KS_KERNEL(ap_match, ApMatch, 64, 8) {
    // A bit a label for each thread.
    KS_SHARED(u32, taken, 64 * 32);
    u32 image = ks_block_x(), size = ks_thread() / 10, bit = ks_thread() % 10;
    u32 first = ks_pointer<const u32>(p.label_starts)[image], labels = ks_pointer<const u32>(p.label_starts)[image + 1] - first;
    u32 count = ks_pointer<const u32>(p.counts)[image];
    u32* verdicts = ks_pointer<u32>(p.verdicts) + 4 * (u64)image * p.detections_max;
    KS_NO_UNROLL
    for (u32 word = ks_thread(); word < 4 * count; word += 64) verdicts[word] = 0;
    ks_fence();
    ks_sync();
    if (ks_thread() >= 40) return;
    labels = labels < LABELS_MAX ? labels : LABELS_MAX;
    KS_NO_UNROLL
    for (u32 word = 0; word < 32; word++) taken[word * 64 + ks_thread()] = 0;
    float threshold = 0.5f + 0.05f * (float)bit;
    KS_NO_UNROLL
    for (u32 index = 0; index < count; index++) {
        u64 at = (u64)image * p.detections_max + index;
        Box box = read_box(p.boxes, at);
        u32 type = ks_pointer<const u32>(p.types)[at], own = ~0u, other = ~0u;
        float best_own = threshold, best_other = threshold;
        KS_NO_UNROLL
        for (u32 place = 0; place < labels; place++) {
            if (ks_pointer<const u32>(p.label_types)[first + place] != type) continue;
            if (taken[place / 32 * 64 + ks_thread()] >> (place % 32) & 1) continue;
            Box label = read_box(p.label_boxes, first + place);
            float width = ks_max(ks_min(box.x2, label.x2) - ks_max(box.x1, label.x1), 0.0f);
            float height = ks_max(ks_min(box.y2, label.y2) - ks_max(box.y1, label.y1), 0.0f);
            float shared = width * height, area = area_of(label);
            float overlap = ks_divide(shared, area + area_of(box) - shared + 1e-7f);
            bool fits = is_of_size(size, area);
            u32& chosen = fits ? own : other;
            float& best = fits ? best_own : best_other;
            if (overlap > best || (chosen == ~0u && overlap >= best)) {
                chosen = place;
                best = overlap;
            }
        }
        u32 place = own != ~0u ? own : other;
        if (place != ~0u) taken[place / 32 * 64 + ks_thread()] |= 1u << (place % 32);
        bool is_ignored = own == ~0u && (other != ~0u || !is_of_size(size, area_of(box)));
        // Hits of sizes 0 and 1, of 2 and 3, then what is ignored alike: sixteen bits each.
        u32 word = size / 2 + (is_ignored ? 2 : 0);
        if (own != ~0u || is_ignored) ks_atomic_or(verdicts + 4 * index + word, 1u << (size % 2 * 16 + bit));
    }
}
