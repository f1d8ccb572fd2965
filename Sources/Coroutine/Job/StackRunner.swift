internal import CCoroutine
import Glibc
import Synchronization

// A fiber: a context that runs one job after another. When a job finishes and the next ready one has not started, it runs
// on the same stack with no switch at all; else the fiber parks inside `main` and waits in a cache for its next job.
// Parked there it owns nothing (`runJob` has returned), so its stack may be given back as it is.

enum StackRunner {
  /// A fiber for jobs of `stackBytes`, or why there is none.
  static func make(_ stackBytes: Int) -> Result<UnsafeMutablePointer<cco_context>, CoroutineError> {
    var context: UnsafeMutablePointer<cco_context>?
    switch cco_create(stackBytes, { context, _ in StackRunner.main(context) }, nil, &context) {
    case CCO_OK: return .success(context!)
    case CCO_STACK_TOO_LARGE: return .failure(.stackTooLarge(stackBytes))
    case let status: return .failure(.outOfStacks(String(cString: cco_status_message(status))))
    }
  }

  /// Gives the stack of an idle fiber back to the pool.
  static func free(_ stack: UnsafeMutablePointer<cco_context>) {
    stack.pointee.state = CCO_FINISHED
    let status = cco_destroy(stack)
    precondition(status == CCO_OK, "an idle fiber was not idle")
  }

  private static func main(_ stack: UnsafeMutablePointer<cco_context>) {
    Carrier.arrive()
    // A null entry is the C core's way of asking a stack to leave for good.
    while stack.pointee.entry != nil {
      runJob(on: stack)
      guard let carrier = Carrier.current else {
        misuse("a forked child has returned from the body of its parent's coroutine; call exec or _exit in the child")
      }
      if carrier.pointee.switchesLeft > 0, let readyQueue = carrier.pointee.readyQueue {
        carrier.pointee.switchesLeft -= 1
        if let next = readyQueue.takeUnstarted(UInt8(truncatingIfNeeded: stack.pointee.size_class)) {
          carrier.pointee.job = next
          next.pointee.context = stack
          continue
        }
        carrier.pointee.leaving = UInt(bitPattern: stack) | 1
        if let next = readyQueue.takeRunnable() {
          carrier.pointee.job = next
          cco_switch(&stack.pointee.parked, &next.pointee.context.unsafelyUnwrapped.pointee.parked)
          arrive(on: stack)
          continue
        }
      }
      carrier.pointee.leaving = UInt(bitPattern: stack) | 1
      carrier.pointee.job = nil
      cco_switch(&stack.pointee.parked, &carrier.pointee.driver)
      arrive(on: stack)
    }
  }

  /// Back on an idle fiber's stack: with a job, or to leave for good, and then nobody's turn need be on this thread.
  private static func arrive(on stack: UnsafeMutablePointer<cco_context>) {
    if stack.pointee.entry != nil { Carrier.arrive() }
  }

  /// Runs the turn's job to its end.
  ///
  /// Not inlined: whatever it retains must be released before the fiber parks.
  @inline(never)
  private static func runJob(on stack: UnsafeMutablePointer<cco_context>) {
    let job = Carrier.current.unsafelyUnwrapped.pointee.job.unsafelyUnwrapped
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
    stack.pointee.label = job.label
    job.handle._withUnsafeGuaranteedRef { $0.runner($0) }
    cco_restore_floating_point()
    job.pointee.context = nil
    AnyJob.retire(job)
    // After the result has been destroyed, which may overflow the stack as well.
    stack.pointee.label = nil
  }
}
