import Testing

// Runs the lock-free parts of the library in every order of their atomic operations that needs at most three
// preemptions.
//
//   Shipped/   links to files of Sources/Coroutine: what is tested is what is shipped, and nothing in it knows of the
//   tests
//   Explorer/  the search, and the types that those files get instead of the real ones: Atomic and SpinLock
//   World/     what else those files name, as little of it as the models need
//   *Tests     a model for each word, a world of some threads and what must hold, and the faults that break it
//
// A fault changes the operations of one function (Fault.swift): each model is seen to fail when a step or a check that
// the algorithm needs is missing. A failure prints the schedule, an operation a line, so that the race can be read.
//
// A shipped file that uses something new may not compile here. Then World needs the new name as well.

/// Every suite of this target is in this one, because one exploration at a time may be under way.
@Suite(.serialized) struct InterleavingTests {}
