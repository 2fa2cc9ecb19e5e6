// The loss of whole images: cross-entropy of the softmax with the true class, mean over the batch. A block an image.
#include "numbers.h"

KS_KERNEL(classify_loss, ClassifyLoss, 256, 4) {
    u32 image = ks_block_x(), label = ks_pointer<const u32>(p.labels)[image];
    const bf16* row = ks_pointer<const bf16>(p.logits.pointer) + (u64)image * p.logits.pitch;
    bf16* to = ks_pointer<bf16>(p.gradient.pointer) + (u64)image * p.gradient.pitch;
    float largest = -3.4e38f;
    KS_NO_UNROLL
    for (u32 index = ks_thread(); index < p.classes; index += 256) largest = ks_max(largest, ks_widen(row[index]));
    // As a key: an order of bits that is that of the numbers.
    u32 bits = ks_bits(largest);
    bits = (u32)block_max(bits >> 31 ? ~bits : bits | 0x80000000u);
    largest = ks_float(bits >> 31 ? bits & 0x7fffffffu : ~bits);
    float sum = 0.0f;
    KS_NO_UNROLL
    for (u32 index = ks_thread(); index < p.classes; index += 256) sum += ks_exp(ks_widen(row[index]) - largest);
    sum = block_sum(sum);
    const float* weights = ks_pointer<const float>(p.class_weights);
    float weight = (weights ? weights[label] : 1.0f) * p.share, inverse = ks_divide(1.0f, sum);
    KS_NO_UNROLL
    for (u32 index = ks_thread(); index < p.gradient.channels; index += 256) {
        float slope = 0.0f;
        if (index < p.classes) {
            float wanted = index == label ? 1.0f : 0.0f;
            slope = weight * (ks_exp(ks_widen(row[index]) - largest) * inverse - wanted);
        }
        to[index] = ks_round(slope);
    }
    volatile float* parts = ks_pointer<volatile float>(p.partials);
    if (ks_thread() == 0) parts[image] = weight * (ks_log(sum) - (ks_widen(row[label]) - largest));
    if (!is_last_to_come(ks_pointer<u32>(p.counter), ks_blocks_x())) return;
    float loss = 0.0f;
    KS_NO_UNROLL
    for (u32 other = ks_thread(); other < ks_blocks_x(); other += 256) loss += parts[other];
    loss = block_sum(loss);
    if (ks_thread() == 0) *ks_pointer<float>(p.loss) = loss;
}
