//! Decoded pictures: 8-bit RGB, rows from the top, and the geometry on them (resize, warp, flip, paste).

/// The grey of every padded pixel.
pub const PADDING: u8 = 114;

/// Fraction bits of resize weights; the sum of two weights is exactly one.
const WEIGHT_BITS: u32 = 11;
/// Fraction bits of warp positions and, of those, the bits that make a weight.
const POSITION_BITS: u32 = 32;
const WARP_WEIGHT_BITS: u32 = 8;
/// Fraction bits of the weights of a smooth resize; they add up to exactly one.
const SMOOTH_WEIGHT_BITS: u32 = 22;
const SMOOTH_HALF: u32 = 1 << (SMOOTH_WEIGHT_BITS - 1);

/// An RGB picture of 8-bit samples.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: usize,
    height: usize,
    pixels: Vec<u8>,
}

impl Picture {
    /// Wraps `width * height * 3` samples.
    ///
    /// # Panics
    /// When the number of samples is another.
    pub fn new(width: usize, height: usize, pixels: Vec<u8>) -> Self {
        assert_eq!(
            pixels.len(),
            width * height * 3,
            "invariant: three samples a pixel"
        );
        Self {
            width,
            height,
            pixels,
        }
    }

    /// Makes a picture of one colour.
    pub fn filled(width: usize, height: usize, colour: [u8; 3]) -> Self {
        Self::new(width, height, colour.repeat(width * height))
    }

    /// Returns the width in pixels.
    pub fn width(&self) -> usize {
        self.width
    }

    /// Returns the height in pixels.
    pub fn height(&self) -> usize {
        self.height
    }

    /// Returns the samples, R G B of the first row's first pixel first.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns the samples for writing.
    pub fn pixels_mut(&mut self) -> &mut [u8] {
        &mut self.pixels
    }

    /// Gives the samples away.
    pub fn into_pixels(self) -> Vec<u8> {
        self.pixels
    }

    /// Returns the pixel in column `x` of row `y`.
    pub fn at(&self, x: usize, y: usize) -> [u8; 3] {
        let start = (y * self.width + x) * 3;
        [
            self.pixels[start],
            self.pixels[start + 1],
            self.pixels[start + 2],
        ]
    }

    /// Returns row `y`.
    pub fn row(&self, y: usize) -> &[u8] {
        &self.pixels[y * self.width * 3..(y + 1) * self.width * 3]
    }

    /// Resizes with two-tap linear filters in each direction, pixel centres aligned, 11-bit weights.
    pub fn resized(&self, width: usize, height: usize) -> Self {
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let columns = taps(self.width, width);
        let rows = taps(self.height, height);
        let mut pixels = vec![0u8; width * height * 3];
        // The two source rows in use, already resized across; neighbouring output rows share them.
        let mut lines = [vec![0u32; width * 3], vec![0u32; width * 3]];
        let mut held = [usize::MAX; 2];
        for (tap, output) in rows.iter().zip(pixels.chunks_exact_mut(width * 3)) {
            let wanted = [tap.index, (tap.index + 1).min(self.height - 1)];
            if held[1] == wanted[0] {
                lines.swap(0, 1);
                held.swap(0, 1);
            }
            for slot in 0..2 {
                if held[slot] != wanted[slot] {
                    resize_row(self.row(wanted[slot]), &columns, &mut lines[slot]);
                    held[slot] = wanted[slot];
                }
            }
            let (upper, lower) = (&lines[0], &lines[1]);
            for ((sample, &above), &below) in output.iter_mut().zip(upper).zip(lower) {
                let sum = above * tap.first + below * tap.second;
                *sample = ((sum + (1 << (2 * WEIGHT_BITS - 1))) >> (2 * WEIGHT_BITS)) as u8;
            }
        }
        Self::new(width, height, pixels)
    }

    /// Copies the rectangle of `source` whose corner is `from` and whose size is `size` to `to`.
    ///
    /// # Panics
    /// When the rectangle leaves either picture.
    pub fn paste(
        &mut self,
        source: &Picture,
        from: (usize, usize),
        size: (usize, usize),
        to: (usize, usize),
    ) {
        for row in 0..size.1 {
            let start = from.0 * 3;
            let line = &source.row(from.1 + row)[start..start + size.0 * 3];
            let target = ((to.1 + row) * self.width + to.0) * 3;
            self.pixels[target..target + size.0 * 3].copy_from_slice(line);
        }
    }

    /// Returns the rectangle of left, top, width, height.
    ///
    /// # Panics
    /// When the rectangle leaves the picture.
    pub fn cropped(&self, (left, top, width, height): (usize, usize, usize, usize)) -> Self {
        let mut pixels = Vec::with_capacity(width * height * 3);
        for y in top..top + height {
            pixels.extend_from_slice(&self.row(y)[left * 3..(left + width) * 3]);
        }
        Self::new(width, height, pixels)
    }

    /// Resizes with a triangle filter that widens as the picture shrinks, so that nothing is skipped (Pillow's
    /// bilinear filter).
    pub fn resized_smoothly(&self, width: usize, height: usize) -> Self {
        if (width, height) == (self.width, self.height) {
            return self.clone();
        }
        let columns = wide_taps(self.width, width);
        let rows = wide_taps(self.height, height);
        let mut lines = vec![0u8; width * self.height * 3];
        for (y, line) in lines.chunks_exact_mut(width * 3).enumerate() {
            let row = self.row(y);
            for (tap, pixel) in columns.iter().zip(line.as_chunks_mut::<3>().0) {
                let source = row[tap.start * 3..].as_chunks::<3>().0;
                let mut sums = [SMOOTH_HALF; 3];
                for (weight, sample) in tap.weights.iter().zip(source) {
                    for channel in 0..3 {
                        sums[channel] += weight * u32::from(sample[channel]);
                    }
                }
                *pixel = sums.map(|sum| (sum >> SMOOTH_WEIGHT_BITS) as u8);
            }
        }
        let mut pixels = vec![0u8; width * height * 3];
        let mut sums = vec![0u32; width * 3];
        for (tap, output) in rows.iter().zip(pixels.chunks_exact_mut(width * 3)) {
            sums.fill(SMOOTH_HALF);
            let source = lines[tap.start * width * 3..].chunks_exact(width * 3);
            for (weight, line) in tap.weights.iter().zip(source) {
                for (sum, &sample) in sums.iter_mut().zip(line) {
                    *sum += weight * u32::from(sample);
                }
            }
            for (sample, sum) in output.iter_mut().zip(&sums) {
                *sample = (sum >> SMOOTH_WEIGHT_BITS) as u8;
            }
        }
        Self::new(width, height, pixels)
    }

    /// Returns the picture seen through `matrix`, which maps positions here to positions in the result;
    /// bilinear, [`PADDING`] outside.
    ///
    /// Returns a picture of padding when the matrix can't be inverted.
    pub fn warped(&self, matrix: &Matrix, width: usize, height: usize) -> Self {
        self.warped_over(matrix, width, height, PADDING)
    }

    /// As [`Picture::warped`] with a grey of one's own outside.
    pub fn warped_over(&self, matrix: &Matrix, width: usize, height: usize, outside: u8) -> Self {
        let mut result = Self::filled(width, height, [outside; 3]);
        let Some(back) = matrix.inverse() else {
            return result;
        };
        for (y, row) in result.pixels.chunks_exact_mut(width * 3).enumerate() {
            if back.is_affine() {
                self.warp_row_affine(&back, y, row, outside);
            } else {
                for (x, pixel) in row.as_chunks_mut::<3>().0.iter_mut().enumerate() {
                    let [source_x, source_y] = back.apply([x as f64, y as f64]);
                    self.sample(fixed(source_x), fixed(source_y), pixel, outside);
                }
            }
        }
        result
    }

    /// Mirrors left and right in place.
    pub fn flip_horizontal(&mut self) {
        for row in self.pixels.chunks_exact_mut(self.width * 3) {
            row.as_chunks_mut::<3>().0.reverse();
        }
    }

    /// Mirrors top and bottom in place.
    pub fn flip_vertical(&mut self) {
        let stride = self.width * 3;
        for y in 0..self.height / 2 {
            let (upper, lower) = self.pixels.split_at_mut((self.height - 1 - y) * stride);
            upper[y * stride..(y + 1) * stride].swap_with_slice(&mut lower[..stride]);
        }
    }

    fn warp_row_affine(&self, back: &Matrix, y: usize, row: &mut [u8], outside: u8) {
        let [[xx, xy, x0], [yx, yy, y0], _] = back.0;
        let (step_x, step_y) = (fixed(xx), fixed(yx));
        let mut source_x = fixed(xy * y as f64 + x0);
        let mut source_y = fixed(yy * y as f64 + y0);
        for pixel in row.as_chunks_mut::<3>().0 {
            self.sample(source_x, source_y, pixel, outside);
            source_x = source_x.saturating_add(step_x);
            source_y = source_y.saturating_add(step_y);
        }
    }

    /// Writes the picture's value at a fixed-point position, if any of its four neighbours lies inside.
    #[inline]
    fn sample(&self, x: i64, y: i64, pixel: &mut [u8; 3], outside: u8) {
        const ONE: u32 = 1 << WARP_WEIGHT_BITS;
        const HALF: u32 = 1 << (2 * WARP_WEIGHT_BITS - 1);
        let weight =
            |position: i64| (position >> (POSITION_BITS - WARP_WEIGHT_BITS)) as u32 & (ONE - 1);
        let (column, line) = (x >> POSITION_BITS, y >> POSITION_BITS);
        let (right, down) = (weight(x), weight(y));
        let weights = [
            (ONE - right) * (ONE - down),
            right * (ONE - down),
            (ONE - right) * down,
            right * down,
        ];
        let (width, height) = (self.width as i64, self.height as i64);
        if column >= 0 && line >= 0 && column < width - 1 && line < height - 1 {
            let upper = (line as usize * self.width + column as usize) * 3;
            let lower = upper + self.width * 3;
            let (upper, lower) = (
                &self.pixels[upper..upper + 6],
                &self.pixels[lower..lower + 6],
            );
            for channel in 0..3 {
                let sum = u32::from(upper[channel]) * weights[0]
                    + u32::from(upper[channel + 3]) * weights[1]
                    + u32::from(lower[channel]) * weights[2]
                    + u32::from(lower[channel + 3]) * weights[3];
                pixel[channel] = ((sum + HALF) >> (2 * WARP_WEIGHT_BITS)) as u8;
            }
        } else if column >= -1 && line >= -1 && column < width && line < height {
            let corner = |dx: i64, dy: i64| {
                let (x, y) = (column + dx, line + dy);
                if x < 0 || y < 0 || x >= width || y >= height {
                    [outside; 3]
                } else {
                    self.at(x as usize, y as usize)
                }
            };
            let corners = [corner(0, 0), corner(1, 0), corner(0, 1), corner(1, 1)];
            for (channel, sample) in pixel.iter_mut().enumerate() {
                let sum: u32 = corners
                    .iter()
                    .zip(weights)
                    .map(|(corner, weight)| u32::from(corner[channel]) * weight)
                    .sum();
                *sample = ((sum + HALF) >> (2 * WARP_WEIGHT_BITS)) as u8;
            }
        }
    }
}

impl std::fmt::Debug for Picture {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "Picture({}×{})", self.width, self.height)
    }
}

/// A 3×3 projective map of the plane, rows first.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Matrix(pub [[f64; 3]; 3]);

impl Matrix {
    /// The map that changes nothing.
    pub const IDENTITY: Self = Self([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]);

    /// Moves by (x, y).
    pub fn translation(x: f64, y: f64) -> Self {
        Self([[1.0, 0.0, x], [0.0, 1.0, y], [0.0, 0.0, 1.0]])
    }

    /// Returns the map that does `first` and then `self`.
    pub fn after(&self, first: &Self) -> Self {
        let mut product = [[0.0; 3]; 3];
        for (row, line) in product.iter_mut().enumerate() {
            for (column, value) in line.iter_mut().enumerate() {
                *value = (0..3).map(|k| self.0[row][k] * first.0[k][column]).sum();
            }
        }
        Self(product)
    }

    /// Maps a point.
    pub fn apply(&self, [x, y]: [f64; 2]) -> [f64; 2] {
        let line = |row: usize| self.0[row][0] * x + self.0[row][1] * y + self.0[row][2];
        let depth = line(2);
        [line(0) / depth, line(1) / depth]
    }

    /// Returns whether the map keeps parallels.
    pub fn is_affine(&self) -> bool {
        self.0[2] == [0.0, 0.0, 1.0]
    }

    /// Returns the map back, if there is one.
    pub fn inverse(&self) -> Option<Self> {
        let [[a, b, c], [d, e, f], [g, h, i]] = self.0;
        let cofactors = [
            [e * i - f * h, c * h - b * i, b * f - c * e],
            [f * g - d * i, a * i - c * g, c * d - a * f],
            [d * h - e * g, b * g - a * h, a * e - b * d],
        ];
        let determinant = a * cofactors[0][0] + b * cofactors[1][0] + c * cofactors[2][0];
        if !determinant.is_normal() {
            return None;
        }
        let mut inverse = cofactors.map(|row| row.map(|value| value / determinant));
        if self.is_affine() {
            inverse[2] = [0.0, 0.0, 1.0];
        }
        Some(Self(inverse))
    }
}

/// Two neighbouring source positions and their weights.
struct Tap {
    index: usize,
    first: u32,
    second: u32,
}

/// Returns where each of `target` outputs reads a line of `source` samples.
fn taps(source: usize, target: usize) -> Vec<Tap> {
    let scale = source as f64 / target as f64;
    let one = 1u32 << WEIGHT_BITS;
    (0..target)
        .map(|output| {
            let position = (output as f64 + 0.5) * scale - 0.5;
            let position = position.clamp(0.0, (source - 1) as f64);
            let index = (position as usize).min(source.saturating_sub(2));
            let second = ((position - index as f64) * f64::from(one)).round() as u32;
            Tap {
                index,
                first: one - second,
                second,
            }
        })
        .collect()
}

/// Returns for each output the first of its two source positions and the weight of the second.
pub(super) fn resize_taps(source: usize, target: usize) -> Vec<u32> {
    let taps = taps(source, target);
    taps.iter()
        .flat_map(|tap| [tap.index as u32, tap.second])
        .collect()
}

/// The neighbouring source positions of one output, and their weights.
struct WideTap {
    start: usize,
    weights: Vec<u32>,
}

/// Returns where each of `target` outputs reads a line of `source` samples, all of them between its neighbours.
fn wide_taps(source: usize, target: usize) -> Vec<WideTap> {
    let scale = source as f64 / target as f64;
    let reach = scale.max(1.0);
    (0..target)
        .map(|output| {
            let centre = (output as f64 + 0.5) * scale;
            let start = ((centre - reach + 0.5).max(0.0)) as usize;
            let end = ((centre + reach + 0.5) as usize).clamp(start + 1, source);
            let shares: Vec<f64> = (start..end)
                .map(|position| {
                    let distance = (position as f64 + 0.5 - centre).abs() / reach;
                    (1.0 - distance).max(0.0)
                })
                .collect();
            let sum: f64 = shares.iter().sum();
            let one = f64::from(1u32 << SMOOTH_WEIGHT_BITS);
            let mut weights: Vec<u32> = shares
                .iter()
                .map(|share| (share / sum * one).round() as u32)
                .collect();
            // What rounding left over goes to the middle one, which is large.
            let middle = weights.len() / 2;
            let others: u32 = weights.iter().sum::<u32>() - weights[middle];
            weights[middle] = (1 << SMOOTH_WEIGHT_BITS) - others;
            WideTap { start, weights }
        })
        .collect()
}

fn resize_row(row: &[u8], columns: &[Tap], line: &mut [u32]) {
    let last = row.len() / 3 - 1;
    for (tap, output) in columns.iter().zip(line.as_chunks_mut::<3>().0) {
        let left = tap.index * 3;
        let right = (tap.index + 1).min(last) * 3;
        for channel in 0..3 {
            output[channel] = u32::from(row[left + channel]) * tap.first
                + u32::from(row[right + channel]) * tap.second;
        }
    }
}

/// Converts to fixed point; what no picture reaches saturates.
fn fixed(value: f64) -> i64 {
    (value * (1u64 << POSITION_BITS) as f64).round() as i64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gradient(width: usize, height: usize) -> Picture {
        let pixels = (0..height)
            .flat_map(|y| (0..width).flat_map(move |x| [x as u8 * 4, y as u8 * 4, 77]))
            .collect();
        Picture::new(width, height, pixels)
    }

    #[test]
    fn resizing_keeps_constants_and_linear_ramps() {
        let flat = Picture::filled(13, 7, [9, 114, 255]);
        assert_eq!(flat.resized(31, 20), Picture::filled(31, 20, [9, 114, 255]));
        let half = gradient(32, 16).resized(16, 8);
        // Output x reads source 2x + 0.5, whose value is 4 (2x + 0.5).
        assert_eq!(half.at(5, 3), [42, 26, 77]);
        let double = gradient(8, 8).resized(16, 16);
        assert_eq!(double.at(0, 0), [0, 0, 77]);
        assert_eq!(double.at(3, 4), [5, 7, 77]);
        assert_eq!(double.at(15, 15), [28, 28, 77]);
    }

    #[test]
    fn resizing_to_or_from_one_pixel_works() {
        assert_eq!(gradient(1, 1).resized(3, 2).at(2, 1), [0, 0, 77]);
        assert_eq!(gradient(3, 3).resized(1, 1).at(0, 0), [4, 4, 77]);
    }

    #[test]
    fn a_smooth_resize_keeps_constants_and_means_and_skips_nothing() {
        let flat = Picture::filled(13, 7, [9, 114, 255]);
        for (width, height) in [(31, 20), (5, 3), (1, 1), (13, 2)] {
            let resized = flat.resized_smoothly(width, height);
            assert_eq!(resized, Picture::filled(width, height, [9, 114, 255]));
        }
        // One bright column of 64 becomes an eighth of a bright column of 8, wherever it is.
        for column in [20, 21, 22, 23] {
            let mut lined = Picture::filled(64, 64, [0; 3]);
            lined.paste(
                &Picture::filled(1, 64, [240; 3]),
                (0, 0),
                (1, 64),
                (column, 0),
            );
            let small = lined.resized_smoothly(8, 8);
            let sum: u32 = (0..8).map(|x| u32::from(small.at(x, 4)[0])).sum();
            assert!((28..=32).contains(&sum), "{sum}");
        }
        let ramp = gradient(32, 16).resized_smoothly(16, 8);
        assert_eq!(ramp.at(5, 3), [42, 26, 77]);
    }

    #[test]
    fn a_part_is_cut_out_as_it_is() {
        let part = gradient(20, 12).cropped((3, 2, 5, 4));
        assert_eq!((part.width(), part.height()), (5, 4));
        assert_eq!(part.at(0, 0), [12, 8, 77]);
        assert_eq!(part.at(4, 3), [28, 20, 77]);
    }

    #[test]
    fn warping_by_the_identity_changes_nothing() {
        let picture = gradient(20, 12);
        assert_eq!(picture.warped(&Matrix::IDENTITY, 20, 12), picture);
    }

    #[test]
    fn warping_moves_pixels_forward_and_pads_with_grey() {
        let moved = gradient(20, 12).warped(&Matrix::translation(3.0, -2.0), 20, 12);
        assert_eq!(moved.at(3, 0), [0, 8, 77]);
        assert_eq!(moved.at(2, 0), [PADDING; 3]);
        assert_eq!(moved.at(5, 10), [PADDING; 3]);
        let between = gradient(20, 12).warped(&Matrix::translation(0.5, 0.0), 20, 12);
        assert_eq!(between.at(4, 4), [14, 16, 77]);
        assert_eq!(between.at(0, 4), [57, 65, 96], "half of it is padding");
    }

    #[test]
    fn a_projective_warp_agrees_with_its_points() {
        let matrix = Matrix([[0.9, 0.1, 3.0], [-0.05, 1.1, 2.0], [0.001, -0.002, 1.0]]);
        let picture = gradient(40, 40);
        let warped = picture.warped(&matrix, 60, 60);
        for point in [[10.0, 10.0], [20.0, 7.0], [5.0, 30.0]] {
            let [x, y] = matrix.apply(point);
            let back = matrix.inverse().unwrap().apply([x, y]);
            assert!((back[0] - point[0]).abs() < 1e-9 && (back[1] - point[1]).abs() < 1e-9);
            let [source_x, source_y] = matrix.inverse().unwrap().apply([x.round(), y.round()]);
            let pixel = warped.at(x.round() as usize, y.round() as usize);
            assert!((f64::from(pixel[0]) - 4.0 * source_x).abs() < 1.0);
            assert!((f64::from(pixel[1]) - 4.0 * source_y).abs() < 1.0);
        }
    }

    #[test]
    fn flips_are_their_own_inverse() {
        let picture = gradient(7, 5);
        let mut flipped = picture.clone();
        flipped.flip_horizontal();
        assert_eq!(flipped.at(0, 3), picture.at(6, 3));
        flipped.flip_vertical();
        assert_eq!(flipped.at(0, 0), picture.at(6, 4));
        flipped.flip_horizontal();
        flipped.flip_vertical();
        assert_eq!(flipped, picture);
    }
}
