import Synchronization

// One failure or two? A coroutine that joins a failed one gets its error and, as a rule, throws it on. A scope then
// sees two coroutines fail, but its caller gets the one error there is: to report it as well would be to report it
// twice.
//
// Neither type nor text tells this from two failures: children that do the same work fail with equal errors. Two facts
// together do:
//  1. It is the same error object. `throw`, `catch` and `Result` keep the object of an `any Error`; a second `throw
//     Oops()` makes a second one.
//  2. The coroutine was given a failure of another (JobFlags.gotFailure). Without this, children that each throw one
//     stored `any Error` would count as one failure.

extension Carrier {
  /// Notes that the running job gets the failure of another.
  ///
  /// Out of line: on the way of a throw only.
  @usableFromInline @inline(never)
  static func noteFailure() {
    guard let job = current?.pointee.job else { return }
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 { return }
    _ = job.pointee.flags.bitwiseOr(JobFlags.gotFailure, ordering: .relaxed)
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether `error`, which ends the job or a part of its body, is `failure` that has come to it from another.
  func passesOn(_ failure: any Error, as error: any Error) -> Bool {
    pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 && isSameObject(failure, error)
  }
}

/// Whether two errors are one object.
///
/// Sound because `any Error` is one word, the reference of an object that holds the error; the cast traps where it is
/// not.
private func isSameObject(_ one: any Error, _ other: any Error) -> Bool {
  unsafeBitCast(ErrorReference(error: one), to: UInt.self) == unsafeBitCast(ErrorReference(error: other), to: UInt.self)
}

/// An error that a call of a generic function does not open.
private struct ErrorReference {
  let error: any Error
}
