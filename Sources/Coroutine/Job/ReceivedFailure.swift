import Synchronization

// Distinguishes a job's own failure from one that it received from another job. A coroutine that joins a failed one
// gets its error, and usually throws the same error. Then two coroutines of a scope fail with one error. The scope's
// caller gets that error, so it must not be reported as an unhandled error too.
//
// Neither the type nor the text of the errors distinguishes this from two failures, because children that do the same
// work may fail with equal errors. A failure is a received one if both of these hold:
//  1. It is the same error object. `throw`, `catch` and `Result` keep the object of an `any Error`; a second `throw
//     Oops()` makes a second one.
//  2. The coroutine has received a failure of another one (JobFlags.gotFailure). Without this, children that each throw
//     one stored `any Error` would count as one failure.

extension Carrier {
  /// Records that the running job receives the failure of another one.
  ///
  /// Not inlined: it runs only on the path of a throw.
  @usableFromInline @inline(never)
  static func noteFailure() {
    guard let job = current?.pointee.job else { return }
    if job.pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 { return }
    _ = job.pointee.flags.bitwiseOr(JobFlags.gotFailure, ordering: .relaxed)
  }
}

extension Result where Failure == any Error {
  /// Returns the value or throws the error, which the running job has received from other code.
  @inlinable
  func received() throws -> Success {
    if case .failure = self { Carrier.noteFailure() }
    return try get()
  }
}

extension UnsafeMutablePointer where Pointee == JobRecord {
  /// Whether `error`, which ends the job or a part of its body, is the `failure` that it received from another one.
  func passesOn(_ failure: any Error, as error: any Error) -> Bool {
    pointee.flags.load(ordering: .relaxed) & JobFlags.gotFailure != 0 && isSameObject(failure, error)
  }
}

/// Whether two errors are one object.
///
/// Sound because `any Error` is one word, the reference to an object that holds the error; otherwise the cast traps.
private func isSameObject(_ one: any Error, _ other: any Error) -> Bool {
  unsafeBitCast(ErrorReference(error: one), to: UInt.self) == unsafeBitCast(ErrorReference(error: other), to: UInt.self)
}

/// Wraps an error, so that the call of a generic function does not open it.
private struct ErrorReference {
  let error: any Error
}
