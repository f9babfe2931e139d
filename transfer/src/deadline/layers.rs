use super::Run;

/// The two layers of a tensor: the upper halves of all elements, and the lower ones. With the upper halves alone, elements are
/// coarse; how much that costs depends on the type, and is to be measured on the values.
///
/// The object is all upper halves, and then all lower ones, each in blocks of its own. A request for all blocks in their order
/// asks for the upper halves first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layers {
    half_bytes: usize,
    elements: usize,
    block_bytes: u32,
}

/// A tensor of which some may be coarse or missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// Its elements. A lower half that is missing is the middle of what it can be; an element whose upper half is missing is 0.
    pub bytes: Vec<u8>,
    /// The number of elements with both halves.
    pub exact: usize,
    /// The number of elements with the upper half alone.
    pub coarse: usize,
}

/// Why a tensor has no layers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayersError {
    /// Elements have no halves.
    #[error("elements of {0} bytes: 2 and 4 have halves")]
    Element(usize),
    /// A block would belong to both layers, or an element to two blocks.
    #[error("{elements} upper halves of {half_bytes} bytes are no whole number of blocks of {block_bytes} bytes")]
    Blocks {
        /// The number of elements.
        elements: usize,
        /// Length of a half, in bytes.
        half_bytes: usize,
        /// Length of a block, in bytes.
        block_bytes: u32,
    },
}

impl Layers {
    /// The layers of so many elements of 2 or 4 bytes (little-endian, as float16, bfloat16 and float32 are in memory).
    ///
    /// # Errors
    /// [`LayersError`] when elements have no halves, or a layer is no whole number of blocks.
    pub fn new(element_bytes: usize, elements: usize, block_bytes: u32) -> Result<Layers, LayersError> {
        if ![2, 4].contains(&element_bytes) {
            return Err(LayersError::Element(element_bytes));
        }
        let half_bytes = element_bytes / 2;
        let is_whole = |bytes: usize| bytes > 0 && elements > 0 && (elements * half_bytes).is_multiple_of(bytes);
        if !is_whole(block_bytes as usize) || !(block_bytes as usize).is_multiple_of(half_bytes) {
            return Err(LayersError::Blocks { elements, half_bytes, block_bytes });
        }
        Ok(Layers { half_bytes, elements, block_bytes })
    }

    /// The blocks of the upper halves, and those of the lower ones.
    pub fn blocks(&self) -> [Run; 2] {
        let count = (self.elements * self.half_bytes / self.block_bytes as usize) as u32;
        [Run { first: 0, count }, Run { first: count, count }]
    }

    /// The object of a tensor.
    ///
    /// # Panics
    /// When the tensor has another number of elements.
    pub fn split(&self, tensor: &[u8]) -> Vec<u8> {
        assert_eq!(tensor.len(), 2 * self.half_bytes * self.elements, "as many elements as the layers were made for");
        let mut object = Vec::with_capacity(tensor.len());
        let elements = || tensor.chunks_exact(2 * self.half_bytes);
        elements().for_each(|element| object.extend_from_slice(&element[self.half_bytes..]));
        elements().for_each(|element| object.extend_from_slice(&element[..self.half_bytes]));
        object
    }

    /// The tensor of an object of which some blocks are there: [`Receiver::block`](super::Receiver::block) says which.
    pub fn join<'a>(&self, block: impl Fn(u32) -> Option<&'a [u8]>) -> Joined {
        let [upper, lower] = self.blocks();
        let of_block = self.block_bytes as usize / self.half_bytes;
        let mut joined = Joined { bytes: vec![0; 2 * self.half_bytes * self.elements], exact: 0, coarse: 0 };
        // The middle of what a lower half can be: its upper bit alone.
        let mut middle = vec![0; self.half_bytes];
        middle[self.half_bytes - 1] = 0x80;
        let blocks = joined.bytes.chunks_mut(of_block * 2 * self.half_bytes);
        for (elements, (upper, lower)) in blocks.zip(upper.blocks().zip(lower.blocks())) {
            let Some(upper) = block(upper) else { continue };
            let lower = block(lower);
            *if lower.is_some() { &mut joined.exact } else { &mut joined.coarse } += of_block;
            let halves = upper.chunks_exact(self.half_bytes).enumerate();
            for (element, (number, half)) in elements.chunks_exact_mut(2 * self.half_bytes).zip(halves) {
                let at = number * self.half_bytes;
                element[..self.half_bytes]
                    .copy_from_slice(lower.map_or(&middle, |lower| &lower[at..at + self.half_bytes]));
                element[self.half_bytes..].copy_from_slice(half);
            }
        }
        joined
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tensor_is_joined_from_what_is_there() {
        let values: Vec<f32> = (0..64).map(|i| (i as f32 - 20.5) * 1.2345).collect();
        let tensor: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let layers = Layers::new(4, 64, 32).unwrap();
        assert_eq!(layers.blocks(), [Run { first: 0, count: 4 }, Run { first: 4, count: 4 }]);
        let object = layers.split(&tensor);
        let all = |block: u32| object.chunks(32).nth(block as usize);
        assert_eq!(layers.join(all), Joined { bytes: tensor.clone(), exact: 64, coarse: 0 });
        // Without the lower half of the second block, and the upper one of the third.
        let joined = layers.join(|block| all(block).filter(|_| ![5, 2].contains(&block)));
        assert_eq!((joined.exact, joined.coarse), (32, 16));
        let found: Vec<f32> =
            joined.bytes.chunks(4).map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect();
        for (number, (found, value)) in found.iter().zip(&values).enumerate() {
            match number / 16 {
                // Half of the last of eight bits of the mantissa.
                1 => assert!((found - value).abs() <= value.abs() / 256.0, "{found} {value}"),
                2 => assert_eq!(*found, 0.0),
                _ => assert_eq!(found, value),
            }
        }
    }

    #[test]
    fn what_has_no_layers_is_an_error() {
        assert_eq!(Layers::new(1, 64, 32), Err(LayersError::Element(1)));
        let blocks = |elements, half_bytes, block_bytes| Err(LayersError::Blocks { elements, half_bytes, block_bytes });
        assert_eq!(Layers::new(2, 65, 32), blocks(65, 1, 32));
        assert_eq!(Layers::new(4, 64, 1), blocks(64, 2, 1));
        assert_eq!(Layers::new(2, 0, 32), blocks(0, 1, 32));
        assert_eq!(Layers::new(2, 64, 0), blocks(64, 1, 0));
    }
}
