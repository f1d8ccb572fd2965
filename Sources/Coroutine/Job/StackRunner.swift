internal import CCoroutine
import Glibc
import Synchronization

// The stacks of jobs. A stack runs one job after another. When a job finishes and the next ready one has not started,
// that one runs on the same stack with no switch at all. Otherwise the stack is parked in the C core's trampoline,
// FINISHED, and waits in a cache for its next job.

enum StackRunner {
  typealias Stack = UnsafeMutablePointer<cco_context>

  /// Returns a context for a job, or the reason why there is none.
  static func make(for job: JobRef) -> Result<Stack, CoroutineError> {
    let bytes = job.pointee.stackBytes
    var context: Stack?
    switch cco_create(bytes, { context, _ in StackRunner.run(context) }, nil, &context) {
    case CCO_OK: return .success(context!)
    case CCO_STACK_TOO_LARGE: return .failure(.stackTooLarge(bytes))
    case let status: return .failure(.outOfStacks(String(cString: cco_status_message(status))))
    }
  }

  /// Returns the stack of an idle context to the pool.
  static func free(_ stack: Stack) {
    let status = cco_destroy(stack)
    precondition(status == CCO_OK, "an idle stack was not idle")
  }

  /// Runs the carrier's job to its end, and returns the flow to continue.
  ///
  /// Everything that it retains is released before the stack is parked. Not inlined into the closure that is passed as
  /// a C function: there the compiler would emit calls for functions that must be inlined.
  @inline(never)
  private static func run(_ stack: Stack) -> UnsafeMutablePointer<cco_saved_context>? {
    Carrier.arrive()
    perform(Carrier.current.unsafelyUnwrapped.pointee.job.unsafelyUnwrapped, on: stack)
    return leave(stack)
  }

  /// Returns the flow to continue behind the end of a job.
  @inline(__always)
  private static func leave(_ stack: Stack) -> UnsafeMutablePointer<cco_saved_context>? {
    guard let carrier = Carrier.current else {
      misuse("a forked child has returned from the body of its parent's coroutine; call exec or _exit in the child")
    }
    if carrier.pointee.switchesLeft > 0, let readyQueue = carrier.pointee.readyQueue {
      carrier.pointee.switchesLeft -= 1
      if let next = readyQueue.takeUnstarted(UInt8(truncatingIfNeeded: stack.pointee.size_class)) {
        carrier.pointee.job = next
        next.pointee.context = stack
        return savedContext(of: stack)
      }
      carrier.pointee.leaving = UInt(bitPattern: stack) | 1
      if let next = readyQueue.takeRunnable() {
        carrier.pointee.job = next
        return savedContext(of: next.pointee.context.unsafelyUnwrapped)
      }
      // To go to the driver is no switch to a job.
      carrier.pointee.granted -= 1
    }
    carrier.pointee.leaving = UInt(bitPattern: stack) | 1
    carrier.pointee.job = nil
    return withUnsafeMutablePointer(to: &carrier.pointee.driver) { $0 }
  }

  // Sound because `parked` is a stored field of a context, whose address stays the same as long as its stack is mapped.
  @inline(__always)
  private static func savedContext(
    of context: UnsafeMutablePointer<cco_context>
  ) -> UnsafeMutablePointer<cco_saved_context> {
    withUnsafeMutablePointer(to: &context.pointee.parked) { $0 }
  }

  @inline(__always)
  private static func perform(_ job: JobRef, on stack: Stack) {
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
    stack.pointee.label = job.label
    job.handle._withUnsafeGuaranteedRef { $0.completion.pointee.work(nil, $0) }
    job.pointee.context = nil
    AnyJob.retire(job)
    // Cleared last: destroying the result may overflow the stack as well.
    stack.pointee.label = nil
  }
}
