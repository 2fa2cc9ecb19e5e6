//! The orthogonalised half of a MuSGD step: every matrix moves along the nearest orthogonal matrix to its
//! smoothed gradient, found by five Newton–Schulz rounds.

use crate::network::{Role, TensorInfo};
use crate::parallel::Threads;

/// How much of the learning rate the orthogonal step takes.
const SHARE: f32 = 0.2;
const ROUNDS: usize = 5;
/// The quintic polynomial that pulls singular values towards 1: `a·x + b·x³ + c·x⁵`.
const POLYNOMIAL: [f32; 3] = [3.4445, -4.775, 2.0315];
const NORM_EPSILON: f64 = 1e-7;

/// The matrices among the parameters.
#[derive(Debug, Clone)]
pub(super) struct Muon {
    /// In the order of their offsets.
    matrices: Vec<Matrix>,
}

/// A tensor seen as a matrix: its first dimension by the rest.
#[derive(Debug, Clone, Copy)]
struct Matrix {
    offset: usize,
    rows: usize,
    columns: usize,
    /// Multiplies the learning rate.
    scale: f32,
}

/// One matrix with its stretches of the flat vectors.
struct Task<'a> {
    matrix: Matrix,
    parameters: &'a mut [f32],
    gradient: &'a [f32],
    memory: &'a mut [f32],
}

impl Muon {
    /// Finds the trained matrices; `scale` is what a tensor's learning rate is multiplied by.
    pub fn new(tensors: &[TensorInfo], scale: impl Fn(&TensorInfo) -> f32) -> Self {
        let matrices = tensors
            .iter()
            .filter(|tensor| tensor.role == Role::Weight && matches!(tensor.shape.len(), 2 | 4))
            .map(|tensor| {
                let [.., height, width] = tensor.shape[..] else {
                    unreachable!("invariant: at least two dimensions")
                };
                let rows = tensor.shape[0];
                // Tall matrices take longer steps; for convolutions the rule looks at the kernel's sides.
                let shape_scale = (height as f32 / width as f32).max(1.0).sqrt();
                Matrix {
                    offset: tensor.offset,
                    rows,
                    columns: tensor.element_count() / rows.max(1),
                    scale: SHARE * shape_scale * scale(tensor),
                }
            })
            .collect();
        Self { matrices }
    }

    /// Moves every matrix one step; the gradient stays.
    #[expect(
        clippy::too_many_arguments,
        reason = "three vectors, three numbers and the threads, of one caller"
    )]
    pub fn step(
        &self,
        parameters: &mut [f32],
        gradient: &[f32],
        factor: f32,
        memory: &mut [f32],
        rate: f32,
        momentum: f32,
        threads: &Threads,
    ) {
        let mut tasks = self.tasks(parameters, gradient, memory);
        // The dearest first, so that no thread is left with one at the end.
        tasks.sort_by_key(|task| std::cmp::Reverse(task.matrix.cost()));
        threads.run_each(tasks, |_, task| task.step(factor, rate, momentum));
    }

    fn tasks<'a>(
        &self,
        mut parameters: &'a mut [f32],
        gradient: &'a [f32],
        mut memory: &'a mut [f32],
    ) -> Vec<Task<'a>> {
        let mut at = 0;
        let take = |from: &mut &'a mut [f32], skip: usize, count: usize| {
            let share = from
                .split_off_mut(..skip + count)
                .expect("invariant: the vector has every tensor's elements");
            &mut share[skip..]
        };
        self.matrices
            .iter()
            .map(|&matrix| {
                let (skip, count) = (matrix.offset - at, matrix.rows * matrix.columns);
                at = matrix.offset + count;
                Task {
                    matrix,
                    parameters: take(&mut parameters, skip, count),
                    gradient: &gradient[matrix.offset..at],
                    memory: take(&mut memory, skip, count),
                }
            })
            .collect()
    }
}

impl Matrix {
    /// Returns how long the matrix takes, in no particular unit.
    fn cost(&self) -> usize {
        self.rows.min(self.columns) * self.rows * self.columns
    }
}

impl Task<'_> {
    fn step(self, factor: f32, rate: f32, momentum: f32) {
        let fresh = 1.0 - momentum;
        let mut update = Vec::with_capacity(self.memory.len());
        for (memory, &gradient) in self.memory.iter_mut().zip(self.gradient) {
            let slope = gradient * factor;
            *memory = momentum * *memory + fresh * slope;
            update.push(momentum * *memory + fresh * slope);
        }
        let (rows, columns) = (self.matrix.rows, self.matrix.columns);
        let is_tall = rows > columns;
        let update = if is_tall {
            let wide = transpose(&update, rows, columns);
            transpose(&orthogonalise(wide, columns, rows), columns, rows)
        } else {
            orthogonalise(update, rows, columns)
        };
        let rate = rate * self.matrix.scale;
        for (parameter, update) in self.parameters.iter_mut().zip(update) {
            *parameter -= rate * update;
        }
    }
}

/// Returns a matrix of about the same singular vectors and singular values near 1; `rows` ≤ `columns`.
fn orthogonalise(mut x: Vec<f32>, rows: usize, columns: usize) -> Vec<f32> {
    let squares = x.iter().map(|&x| f64::from(x) * f64::from(x));
    let norm = (squares.sum::<f64>().sqrt() + NORM_EPSILON) as f32;
    x.iter_mut().for_each(|x| *x /= norm);
    let [a, b, c] = POLYNOMIAL;
    let mut gram = vec![0.0; rows * rows];
    let mut square = vec![0.0; rows * rows];
    let mut next = vec![0.0; x.len()];
    for _ in 0..ROUNDS {
        multiply(&x, &transpose(&x, rows, columns), columns, rows, &mut gram);
        multiply(&gram, &gram, rows, rows, &mut square);
        for (square, gram) in square.iter_mut().zip(&gram) {
            *square = b * gram + c * *square;
        }
        multiply(&square, &x, rows, columns, &mut next);
        for (x, next) in x.iter_mut().zip(&next) {
            *x = a * *x + next;
        }
    }
    x
}

/// Writes the product of `left` (any × `inner`) and `right` (`inner` × `columns`), all row by row.
fn multiply(left: &[f32], right: &[f32], inner: usize, columns: usize, product: &mut [f32]) {
    const HIGH: usize = 4;
    const WIDE: usize = 8;
    for (left, product) in left
        .chunks(HIGH * inner)
        .zip(product.chunks_mut(HIGH * columns))
    {
        let rows = left.len() / inner;
        for start in (0..columns).step_by(WIDE) {
            let count = WIDE.min(columns - start);
            let mut sums = [[0.0f32; WIDE]; HIGH];
            if rows == HIGH && count == WIDE {
                for (k, right) in right.chunks_exact(columns).enumerate() {
                    let right: [f32; WIDE] = std::array::from_fn(|j| right[start + j]);
                    for (i, sums) in sums.iter_mut().enumerate() {
                        let left = left[i * inner + k];
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum += left * right;
                        }
                    }
                }
            } else {
                for (k, right) in right.chunks_exact(columns).enumerate() {
                    for (i, sums) in sums.iter_mut().enumerate().take(rows) {
                        let right = &right[start..start + count];
                        for (sum, right) in sums.iter_mut().zip(right) {
                            *sum += left[i * inner + k] * right;
                        }
                    }
                }
            }
            for (i, sums) in sums.iter().enumerate().take(rows) {
                product[i * columns + start..][..count].copy_from_slice(&sums[..count]);
            }
        }
    }
}

/// Returns the transpose of a `rows` × `columns` matrix.
fn transpose(x: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    let mut turned = vec![0.0; x.len()];
    for (row, values) in x.chunks_exact(columns).enumerate() {
        for (column, &value) in values.iter().enumerate() {
            turned[column * rows + row] = value;
        }
    }
    turned
}

#[cfg(test)]
mod tests {
    use super::*;

    fn made_up(count: usize) -> Vec<f32> {
        (0..count).map(|i| (i as f32 * 1.7).sin() + 0.1).collect()
    }

    #[test]
    fn products_of_any_shape_are_right() {
        for (rows, inner, columns) in [(4, 5, 8), (1, 1, 1), (6, 3, 19), (9, 16, 7)] {
            let (left, right) = (made_up(rows * inner), made_up(inner * columns));
            let mut product = vec![0.0; rows * columns];
            multiply(&left, &right, inner, columns, &mut product);
            for (at, &found) in product.iter().enumerate() {
                let (i, j) = (at / columns, at % columns);
                let terms = (0..inner).map(|k| left[i * inner + k] * right[k * columns + j]);
                assert!((found - terms.sum::<f32>()).abs() < 1e-5);
            }
        }
    }

    #[test]
    fn singular_values_end_near_one() {
        let (rows, columns) = (3, 10);
        let x = orthogonalise(made_up(rows * columns), rows, columns);
        for i in 0..rows {
            let row = &x[i * columns..][..columns];
            let length: f32 = row.iter().map(|x| x * x).sum::<f32>().sqrt();
            assert!(length > 0.3 && length < 1.3, "{length}");
        }
    }

    #[test]
    fn a_matrix_of_rank_one_moves_along_itself() {
        // One row: its only singular value is the norm, so five rounds of the polynomial on 1 give the factor.
        let mut expected = 1.0f64;
        for _ in 0..ROUNDS {
            let cube = expected.powi(3);
            expected = 3.4445 * expected - 4.775 * cube + 2.0315 * cube * expected * expected;
        }
        for (rows, columns) in [(1, 4), (4, 1)] {
            let tensor = TensorInfo {
                name: "model.0.conv.weight".into(),
                shape: vec![rows, columns],
                offset: 2,
                role: Role::Weight,
            };
            let mut parameters = vec![0.0; 7];
            let mut memory = vec![0.0; 7];
            let gradient = [9.0, 9.0, 1.0, 2.0, -2.0, 4.0, 9.0];
            let threads = Threads::new(2).unwrap();
            Muon::new(&[tensor], |_| 3.0).step(
                &mut parameters,
                &gradient,
                0.5,
                &mut memory,
                0.1,
                0.9,
                &threads,
            );
            let tall = (rows as f64 / columns as f64).max(1.0).sqrt();
            for i in 2..6 {
                let along = f64::from(gradient[i]) / 5.0 * expected * 0.2 * 3.0 * 0.1 * tall;
                assert!((f64::from(parameters[i]) + along).abs() < 1e-5);
                assert!((memory[i] - 0.05 * gradient[i]).abs() < 1e-7);
            }
            assert_eq!((parameters[0], parameters[6], memory[1]), (0.0, 0.0, 0.0));
        }
    }
}
