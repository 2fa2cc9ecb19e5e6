// One step of the optimiser over flat vectors, whatever the tensors: the host cuts them into pieces that are treated
// alike, a block each. Rates come from device memory, so that a step is always the same launch.
#include "numbers.h"

#define WEIGHT 0
#define AVERAGED_ONLY 3

// The gradient's length, the factor that shortens it, and whether it is a number at all.
KS_KERNEL(grad_norm, GradNorm, 256, 4) {
    float sum = 0.0f;
    const float* gradient = ks_pointer<const float>(p.gradient);
    KS_NO_UNROLL
    for (u32 item = ks_block_x() * 256 + ks_thread(); item < p.count; item += ks_blocks_x() * 256)
        sum = ks_fma(gradient[item], gradient[item], sum);
    sum = block_sum(sum);
    volatile float* parts = ks_pointer<volatile float>(p.partials);
    if (ks_thread() == 0) parts[ks_block_x()] = sum;
    if (!is_last_to_come(ks_pointer<u32>(p.counter), ks_blocks_x())) return;
    sum = 0.0f;
    KS_NO_UNROLL
    for (u32 block = ks_thread(); block < ks_blocks_x(); block += 256) sum += parts[block];
    sum = block_sum(sum);
    if (ks_thread() != 0) return;
    float norm = ks_root(sum);
    float* clip = ks_pointer<float>(p.clip);
    bool is_finite = (ks_bits(sum) & 0x7f800000u) != 0x7f800000u;
    clip[0] = norm;
    clip[1] = is_finite ? ks_min(ks_divide(p.limit, norm + 1e-6f), 1.0f) : 0.0f;
    if (!is_finite) *ks_pointer<u32>(p.skipped) += 1;
}

// Descends, averages, rounds, clears. Where the gradient is no number nothing moves, and the gradient is cleared.
KS_KERNEL(opt_step, OptStep, 256, 4) {
    const u32* piece = ks_pointer<const u32>(p.pieces) + 4 * (u64)ks_block_x();
    u32 start = piece[0], end = start + piece[1], role = piece[2];
    const float* control = ks_pointer<const float>(p.control);
    const float* clip = ks_pointer<const float>(p.clip);
    float factor = clip[1], rate = role == AVERAGED_ONLY ? 0.0f : control[role] * ks_float(piece[3]);
    float momentum = control[3], share = control[4], mean_bias = control[5], square_bias = control[6];
    float decay = role == WEIGHT ? p.weight_decay : 0.0f;
    bool is_finite = (ks_bits(clip[0]) & 0x7f800000u) != 0x7f800000u;
    float* master = ks_pointer<float>(p.master);
    float* gradient = ks_pointer<float>(p.gradient);
    float* average = ks_pointer<float>(p.average);
    KS_NO_UNROLL
    for (u32 item = start + ks_thread(); item < end; item += 256) {
        float value = master[item];
        if (role != AVERAGED_ONLY) {
            float slope = gradient[item] * factor;
            gradient[item] = 0.0f;
            if (!is_finite) continue;
            float* first = ks_pointer<float>(p.first) + item;
            if (p.adaptive) {
                float* second = ks_pointer<float>(p.second) + item;
                float mean = *first + p.mean_share * (slope - *first);
                float square = p.square_keep * *second + p.square_share * slope * slope;
                *first = mean;
                *second = square;
                float root = ks_divide(ks_root(square), square_bias) + 1e-8f;
                value = value * (1.0f - rate * decay) - ks_divide(rate, mean_bias) * ks_divide(mean, root);
            } else {
                slope += decay * value;
                float memory = momentum * *first + slope;
                *first = memory;
                value -= rate * (slope + momentum * memory);
            }
            master[item] = value;
            if (p.work) ks_pointer<bf16>(p.work)[item] = ks_round(value);
        } else if (!is_finite) {
            continue;
        }
        average[item] += share * (value - average[item]);
    }
}

// Weights once more, as the gradient of the input reads them: [output][tap][input] becomes [input][tap][output]. A block
// is 32 outputs by 32 inputs of a tap.
KS_KERNEL(turn_weights, TurnWeights, 256, 4) {
    KS_SHARED(u16, square, 32 * 33);
    const u32* tile = ks_pointer<const u32>(p.tiles) + 4 * (u64)ks_block_x();
    const u32* matrix = ks_pointer<const u32>(p.matrices) + 6 * (u64)tile[0];
    u32 outputs = matrix[2], inputs = matrix[3], taps = matrix[4], tap = tile[1], across = ks_thread() % 32;
    const u16* from = ks_pointer<const u16>(p.weights) + matrix[0];
    u16* to = ks_pointer<u16>(p.turned) + matrix[1];
    KS_NO_UNROLL
    for (u32 down = ks_thread() / 32; down < 32; down += 8) {
        u32 output = tile[2] + down, input = tile[3] + across;
        if (output < outputs && input < inputs) square[down * 33 + across] = from[((u64)output * taps + tap) * inputs + input];
    }
#ifndef MUT_NO_BARRIER_TURN
    ks_sync();
#endif
    KS_NO_UNROLL
    for (u32 down = ks_thread() / 32; down < 32; down += 8) {
        u32 input = tile[3] + down, output = tile[2] + across;
        if (output < outputs && input < inputs) to[((u64)input * taps + tap) * outputs + output] = square[across * 33 + down];
    }
}

// A norm with running statistics, folded into the weights before it; a block is an output channel.
KS_KERNEL(bn_fold, BnFold, 128, 4) {
    u32 channel = ks_block_x();
    float deviation = ks_root(ks_pointer<const float>(p.variance)[channel] + p.epsilon);
    float scale = ks_divide(ks_pointer<const float>(p.gamma)[channel], deviation);
    const float* weights = ks_pointer<const float>(p.weights) + (u64)channel * p.row;
    bf16* folded = ks_pointer<bf16>(p.folded) + (u64)channel * p.row;
    KS_NO_UNROLL
    for (u32 item = ks_thread(); item < p.row; item += 128) folded[item] = ks_round(weights[item] * scale);
    if (ks_thread() == 0)
        ks_pointer<float>(p.bias)[channel] =
            ks_fma(-ks_pointer<const float>(p.mean)[channel], scale, ks_pointer<const float>(p.beta)[channel]);
}
