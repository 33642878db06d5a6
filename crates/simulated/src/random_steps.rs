//! Random programs for a model and the real kernel.

use proptest::{prelude::*, strategy::ValueTree, test_runner::TestRunner};

/// A step: an action and its operands; the tests of a model say what each number means.
pub(super) type Step = (u8, u8, u8, u8);

/// Returns that number of programs, the same each time.
pub(super) fn programs(cases: u32) -> impl Iterator<Item = Vec<Step>> {
    let step = (any::<u8>(), any::<u8>(), any::<u8>(), any::<u8>());
    let program = prop::collection::vec(step, 20..60);
    let mut runner = TestRunner::deterministic();
    (0..cases).map(move |_| {
        let program = program.new_tree(&mut runner).expect("a program");
        program.current()
    })
}
