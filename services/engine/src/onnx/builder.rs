//! Collects the nodes and constants of an ONNX graph, giving every value a name of its own.

use std::collections::HashMap;

use super::proto::{self, Attribute, Node, Tensor};

/// A graph under construction.
#[derive(Debug, Default)]
pub struct Builder {
    pub nodes: Vec<Node>,
    pub constants: Vec<Tensor>,
    /// How often a node name was used.
    names: HashMap<String, usize>,
    /// Shape constants by value: many nodes share them.
    shapes: HashMap<Vec<i64>, String>,
}

impl Builder {
    /// Adds a node with one output and returns the output's name.
    pub fn node(
        &mut self,
        name: &str,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
    ) -> String {
        self.split_node(name, op_type, inputs, attributes, 1)
            .remove(0)
    }

    /// Adds a node with `outputs` outputs and returns their names.
    pub fn split_node(
        &mut self,
        name: &str,
        op_type: &str,
        inputs: &[&str],
        attributes: Vec<Attribute>,
        outputs: usize,
    ) -> Vec<String> {
        let name = self.unique(&format!("/{}/{op_type}", name.replace('.', "/")));
        let output: Vec<String> = (0..outputs)
            .map(|index| format!("{name}_output_{index}"))
            .collect();
        self.nodes.push(Node {
            input: inputs.iter().map(|&input| input.to_owned()).collect(),
            output: output.clone(),
            name,
            op_type: op_type.into(),
            attribute: attributes,
        });
        output
    }

    /// Renames a value wherever it is written or read.
    pub fn rename(&mut self, name: &str, new_name: &str) {
        for node in &mut self.nodes {
            for value in node.output.iter_mut().chain(&mut node.input) {
                if value == name {
                    new_name.clone_into(value);
                }
            }
        }
    }

    /// Adds a float constant and returns its name.
    pub fn floats(&mut self, name: &str, dimensions: &[usize], values: &[f32]) -> String {
        debug_assert_eq!(
            dimensions.iter().product::<usize>(),
            values.len(),
            "invariant: {name} has as many values as its shape"
        );
        let name = self.unique(name);
        self.constants.push(Tensor {
            dims: dimensions.iter().map(|&side| side as i64).collect(),
            data_type: proto::FLOAT,
            name: name.clone(),
            raw_data: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            ..Tensor::default()
        });
        name
    }

    /// Adds a constant of whole numbers and returns its name; equal ones are stored once.
    pub fn whole(&mut self, values: &[i64]) -> String {
        if let Some(name) = self.shapes.get(values) {
            return name.clone();
        }
        let name = format!("whole_{}", self.shapes.len());
        self.constants.push(Tensor {
            dims: vec![values.len() as i64],
            data_type: proto::INT64,
            name: name.clone(),
            raw_data: values
                .iter()
                .flat_map(|value| value.to_le_bytes())
                .collect(),
            ..Tensor::default()
        });
        self.shapes.insert(values.to_vec(), name.clone());
        name
    }

    /// Adds a reshape; 0 keeps a side and -1 takes what is left.
    pub fn reshape(&mut self, name: &str, input: &str, shape: &[i64]) -> String {
        let shape = self.whole(shape);
        self.node(name, "Reshape", &[input, &shape], Vec::new())
    }

    /// Adds a transposition.
    pub fn transpose(&mut self, name: &str, input: &str, order: impl Into<Vec<i64>>) -> String {
        self.node(
            name,
            "Transpose",
            &[input],
            vec![Attribute::ints("perm", order)],
        )
    }

    /// Adds a concatenation along `axis`.
    pub fn concat(&mut self, name: &str, inputs: &[&str], axis: i64) -> String {
        self.node(name, "Concat", inputs, vec![Attribute::int("axis", axis)])
    }

    /// Cuts a value along `axis` into pieces of the given lengths.
    pub fn split(&mut self, name: &str, input: &str, axis: i64, lengths: &[i64]) -> Vec<String> {
        let sizes = self.whole(lengths);
        let attributes = vec![Attribute::int("axis", axis)];
        self.split_node(name, "Split", &[input, &sizes], attributes, lengths.len())
    }

    fn unique(&mut self, name: &str) -> String {
        let used = self.names.entry(name.to_owned()).or_default();
        *used += 1;
        match *used {
            1 => name.to_owned(),
            again => format!("{name}_{}", again - 1),
        }
    }
}
