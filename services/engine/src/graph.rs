//! The static graph of a model: values, nodes and named tensors, forward only. Shapes are relative to the
//! input, so one graph serves every batch and image size; `plan` makes it concrete and derives the
//! backward pass node by node.

use crate::network::{InputShape, Role, TensorInfo};
pub use crate::ops::norm::{Activation, Constants};

/// A value of the graph: an activation tensor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueId(pub usize);

/// The sides of a value, before the input's are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// The input's sides divided by this.
    Fraction(usize),
    /// One pixel per image.
    Pixel,
}

impl Size {
    /// Returns height and width for an input.
    pub fn of(self, shape: InputShape) -> [usize; 2] {
        match self {
            Self::Fraction(divisor) => [shape.height, shape.width].map(|side| side / divisor),
            Self::Pixel => [1, 1],
        }
    }

    fn divided(self, divisor: usize) -> Self {
        match self {
            Self::Fraction(by) => Self::Fraction(by * divisor),
            Self::Pixel => Self::Pixel,
        }
    }

    fn doubled(self) -> Self {
        match self {
            Self::Fraction(by) if by.is_multiple_of(2) => Self::Fraction(by / 2),
            _ => unreachable!("invariant: only what was halved before is doubled"),
        }
    }
}

/// What is known about a value before the input's size is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Value {
    pub channels: usize,
    pub size: Size,
}

/// Batch normalisation by its tensors: indices into `Graph::parameters` and `Graph::buffers`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Norm {
    pub weight: usize,
    pub bias: usize,
    pub mean: usize,
    pub variance: usize,
    pub constants: Constants,
}

/// Which inputs an output of a convolution is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// All channels under the kernel.
    Dense,
    /// Its own channel under the kernel.
    Depthwise,
    /// All channels of the one pixel it grows out of: kernel 2, stride 2, twice the side.
    Transposed,
}

/// A convolution with what follows it. It has either a norm or a bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Convolution {
    pub input_channels: usize,
    pub output_channels: usize,
    /// The side of the square kernel; the padding is half of it.
    pub kernel: usize,
    pub stride: usize,
    pub form: Form,
    /// Nothing before it learns from it: no gradient goes to its input.
    pub detached: bool,
    /// Index into `Graph::parameters`.
    pub weight: usize,
    pub bias: Option<usize>,
    pub norm: Option<Norm>,
    pub activation: Activation,
}

/// What a node computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    /// The batch of images: RGB, 0 to 1.
    Image,
    Convolution(Convolution),
    Add,
    /// The maximum over a square window, stride 1, half the window as padding.
    MaxPool {
        window: usize,
    },
    /// Nearest neighbour, twice the side.
    Upsample,
    /// The mean over all pixels of an image.
    GlobalPool,
    /// Along the channels.
    Concat,
    /// Some channels of the input.
    Slice {
        offset: usize,
    },
    /// Self-attention over the pixels. The input holds for each head its queries, keys and values; the
    /// outputs are the attended values and the values themselves, both as images.
    Attention {
        heads: usize,
        key_channels: usize,
        value_channels: usize,
    },
}

/// One step of the graph.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The module's name in the reference's state dict, such as `model.2.m.0.cv1`.
    pub name: String,
    pub op: Op,
    pub inputs: Vec<ValueId>,
    pub outputs: Vec<ValueId>,
}

/// The raw outputs of one level of one branch of a dense head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// Pixels of the input per cell.
    pub stride: usize,
    pub boxes: ValueId,
    pub scores: ValueId,
    /// Mask coefficients, keypoints or the angle.
    pub extra: Option<ValueId>,
    /// Deviations of keypoints, for training.
    pub sigma: Option<ValueId>,
}

impl Head {
    /// Returns the values in the order boxes, scores, extra, sigma.
    pub fn values(&self) -> impl Iterator<Item = ValueId> {
        let always = [Some(self.boxes), Some(self.scores)];
        let all = always.into_iter().chain([self.extra, self.sigma]);
        all.flatten()
    }
}

/// A model: nodes in an order in which they can run, and the tensors they name.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Graph {
    pub values: Vec<Value>,
    pub nodes: Vec<Node>,
    /// Of every norm.
    pub norm_constants: Constants,
    /// In the state dict's order, which is not the order of the nodes.
    pub parameters: Vec<TensorInfo>,
    pub buffers: Vec<TensorInfo>,
    /// What each row of the family's table puts out.
    pub rows: Vec<ValueId>,
    /// The only branch of the head, or one-to-many, then one-to-one.
    pub branches: Vec<Vec<Head>>,
    /// Prototypes of masks.
    pub prototypes: Option<ValueId>,
    /// Logits of a class per pixel, for training.
    pub semantic: Option<ValueId>,
    /// Class logits of the whole image.
    pub logits: Option<ValueId>,
}

impl Graph {
    /// Returns what is known about a value.
    pub fn value(&self, id: ValueId) -> &Value {
        &self.values[id.0]
    }

    /// Returns for each node whether an output is made of what it makes.
    pub fn needed_nodes(&self) -> Vec<bool> {
        let mut needed_values = vec![false; self.values.len()];
        for id in self.outputs() {
            needed_values[id.0] = true;
        }
        let mut needed = vec![false; self.nodes.len()];
        for (index, node) in self.nodes.iter().enumerate().rev() {
            needed[index] = node.outputs.iter().any(|id| needed_values[id.0]);
            if needed[index] {
                for id in &node.inputs {
                    needed_values[id.0] = true;
                }
            }
        }
        needed
    }

    /// Returns the nodes that read a value.
    pub fn consumers(&self, id: ValueId) -> impl Iterator<Item = usize> + '_ {
        let reads = move |(_, node): &(usize, &Node)| node.inputs.contains(&id);
        self.nodes.iter().enumerate().filter(reads).map(|(i, _)| i)
    }

    /// Returns the node that makes a value.
    ///
    /// # Panics
    /// When no node does, which the builder rules out.
    pub fn producer(&self, id: ValueId) -> usize {
        let makes = |node: &Node| node.outputs.contains(&id);
        let found = self.nodes.iter().position(makes);
        found.expect("invariant: every value is made by a node")
    }

    /// Returns the values that the loss reads.
    pub fn outputs(&self) -> Vec<ValueId> {
        let levels = self.branches.iter().flatten().flat_map(Head::values);
        let maps = [self.prototypes, self.semantic, self.logits];
        levels.chain(maps.into_iter().flatten()).collect()
    }

    /// Adds a named parameter and returns its index.
    pub fn parameter(&mut self, name: String, shape: Vec<usize>, role: Role) -> usize {
        push_tensor(&mut self.parameters, name, shape, role)
    }

    /// Adds a named running statistic and returns its index.
    pub fn buffer(&mut self, name: String, shape: Vec<usize>) -> usize {
        push_tensor(&mut self.buffers, name, shape, Role::Frozen)
    }

    fn node(&mut self, name: &str, op: Op, inputs: &[ValueId], outputs: &[Value]) -> Vec<ValueId> {
        let first = self.values.len();
        self.values.extend_from_slice(outputs);
        let outputs: Vec<_> = (first..self.values.len()).map(ValueId).collect();
        self.nodes.push(Node {
            name: name.to_owned(),
            op,
            inputs: inputs.to_vec(),
            outputs: outputs.clone(),
        });
        outputs
    }

    fn map(&mut self, name: &str, op: Op, inputs: &[ValueId], output: Value) -> ValueId {
        self.node(name, op, inputs, &[output])[0]
    }

    /// Adds the input.
    pub fn image(&mut self) -> ValueId {
        let image = Value {
            channels: 3,
            size: Size::Fraction(1),
        };
        self.map("images", Op::Image, &[], image)
    }

    /// Adds a convolution.
    pub fn convolution(&mut self, name: &str, convolution: Convolution, input: ValueId) -> ValueId {
        let Value { channels, size } = *self.value(input);
        assert_eq!(
            channels, convolution.input_channels,
            "invariant: {name} reads as many channels as its weight has"
        );
        let output = Value {
            channels: convolution.output_channels,
            size: match convolution.form {
                Form::Transposed => size.doubled(),
                _ => size.divided(convolution.stride),
            },
        };
        self.map(name, Op::Convolution(convolution), &[input], output)
    }

    /// Adds a sum of two values of one shape.
    pub fn add(&mut self, name: &str, left: ValueId, right: ValueId) -> ValueId {
        assert_eq!(
            self.value(left),
            self.value(right),
            "invariant: {name} adds equal shapes"
        );
        let output = self.value(left).clone();
        self.map(name, Op::Add, &[left, right], output)
    }

    /// Adds a max-pool of stride 1.
    pub fn max_pool(&mut self, name: &str, window: usize, input: ValueId) -> ValueId {
        let output = self.value(input).clone();
        self.map(name, Op::MaxPool { window }, &[input], output)
    }

    /// Adds a nearest-neighbour enlargement by two.
    pub fn upsample(&mut self, name: &str, input: ValueId) -> ValueId {
        let Value { channels, size } = *self.value(input);
        let output = Value {
            channels,
            size: size.doubled(),
        };
        self.map(name, Op::Upsample, &[input], output)
    }

    /// Adds the mean over all pixels.
    pub fn global_pool(&mut self, name: &str, input: ValueId) -> ValueId {
        let output = Value {
            channels: self.value(input).channels,
            size: Size::Pixel,
        };
        self.map(name, Op::GlobalPool, &[input], output)
    }

    /// Adds a concatenation along the channels.
    pub fn concat(&mut self, name: &str, inputs: &[ValueId]) -> ValueId {
        let output = Value {
            channels: inputs.iter().map(|&id| self.value(id).channels).sum(),
            size: self.value(inputs[0]).size,
        };
        self.map(name, Op::Concat, inputs, output)
    }

    /// Cuts a value into two halves along the channels.
    pub fn halves(&mut self, name: &str, input: ValueId) -> [ValueId; 2] {
        let Value { channels, size } = *self.value(input);
        let half = channels / 2;
        [0, half].map(|offset| {
            let output = Value {
                channels: half,
                size,
            };
            self.map(name, Op::Slice { offset }, &[input], output)
        })
    }

    /// Adds self-attention; returns the attended values and the values as images.
    pub fn attention(
        &mut self,
        name: &str,
        input: ValueId,
        heads: usize,
        key_channels: usize,
        value_channels: usize,
    ) -> [ValueId; 2] {
        let output = Value {
            channels: heads * value_channels,
            size: self.value(input).size,
        };
        let op = Op::Attention {
            heads,
            key_channels,
            value_channels,
        };
        let made = self.node(name, op, &[input], &[output.clone(), output]);
        [made[0], made[1]]
    }
}

fn push_tensor(
    tensors: &mut Vec<TensorInfo>,
    name: String,
    shape: Vec<usize>,
    role: Role,
) -> usize {
    let offset = tensors.last().map_or(0, |last| last.range().end);
    tensors.push(TensorInfo {
        name,
        shape,
        offset,
        role,
    });
    tensors.len() - 1
}
