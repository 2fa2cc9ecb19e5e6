//! The loss of whole images: cross-entropy of the softmax with the true class, mean over the batch.

use crate::network::Map;

use super::rules::Rules;
use super::targets::Targets;

/// Returns the loss, and writes its gradient where it is wanted, zero in the padding.
///
/// # Panics
/// When there isn't a label below the class count for every image.
pub(super) fn compute(
    rules: &Rules,
    logits: Map<'_>,
    gradient: Option<&mut [f32]>,
    targets: &Targets,
) -> f64 {
    let batch = targets.batch;
    assert_eq!(targets.labels.len(), batch, "there is a label per image");
    let mut gradients = gradient.map(|values| values.chunks_exact_mut(logits.pixel_stride));
    let rows = logits.values.chunks_exact(logits.pixel_stride);
    let mut sum = 0.0;
    for (row, &label) in rows.zip(&targets.labels) {
        let row = &row[..rules.class_count];
        let weight = rules.class_weight(label) / batch as f64;
        let largest = row.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exp = |&x: &f32| (f64::from(x) - f64::from(largest)).exp();
        let total: f64 = row.iter().map(exp).sum();
        let own = f64::from(row[label as usize]) - f64::from(largest);
        sum += weight * (total.ln() - own);
        let Some(gradient) = gradients.as_mut().and_then(Iterator::next) else {
            continue;
        };
        gradient[rules.class_count..].fill(0.0);
        for (class, (slope, x)) in gradient.iter_mut().zip(row).enumerate() {
            let wanted = f64::from(u8::from(class == label as usize));
            *slope = (weight * (exp(x) / total - wanted)) as f32;
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::loss::rules::LossSettings;
    use crate::models::{Family, ModelSpec, Scale, Task};

    #[test]
    fn value_and_gradient_agree_with_their_definition() {
        let spec = ModelSpec {
            family: Family::Yolo11,
            scale: Scale::N,
            task: Task::Classify,
            class_count: 5,
            keypoints: None,
            class_hidden: None,
        };
        let weights = vec![0.5, 1.5, 1.0, 0.75, 1.25];
        for class_weights in [Vec::new(), weights] {
            let weight = |class: usize| class_weights.get(class).map_or(1.0, |&w| f64::from(w));
            let settings = LossSettings {
                class_weights: class_weights.clone(),
                ..LossSettings::default()
            };
            let rules = Rules::new(&spec, settings);
            let values: Vec<f32> = (0..3 * 16).map(|i| ((i * 7) % 11) as f32 - 40.0).collect();
            let targets = Targets::labelled(vec![3, 0, 4]);
            let map = |values| Map {
                height: 1,
                width: 1,
                channels: 5,
                pixel_stride: 16,
                values,
            };
            let definition = |values: &[f32]| -> f64 {
                let rows = values.chunks(16).zip([3usize, 0, 4]);
                let each = rows.map(|(row, label)| {
                    let sum: f64 = row[..5].iter().map(|&x| f64::from(x).exp()).sum();
                    weight(label) * (sum.ln() - f64::from(row[label]))
                });
                each.sum::<f64>() / 3.0
            };
            let mut gradient = vec![f32::NAN; values.len()];
            let loss = compute(&rules, map(&values), Some(&mut gradient), &targets);
            assert!((loss - definition(&values)).abs() < 1e-9);
            assert_eq!(loss, compute(&rules, map(&values), None, &targets));
            for (i, slope) in gradient.iter().enumerate() {
                let at = |by: f32| {
                    let mut moved = values.clone();
                    moved[i] += by;
                    definition(&moved)
                };
                let difference = (at(0.0078125) - at(-0.0078125)) * 64.0;
                assert!((difference - f64::from(*slope)).abs() < 1e-5);
            }
        }
    }
}
