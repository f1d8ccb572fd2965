internal import CCoroutine
import Glibc
import Synchronization

// A fiber: a context that runs one job after another. When a job finishes and the next ready one has not started, it runs
// on the same stack with no switch at all; else the fiber parks inside `main` and waits in a cache for its next job.
// Parked there it owns nothing (`runJob` has returned), so its stack may be given back as it is.

enum Fiber {
  /// A fiber for jobs of `stackBytes`, or why there is none.
  static func make(_ stackBytes: Int) -> Result<UnsafeMutablePointer<cco_context>, CoroutineError> {
    var context: UnsafeMutablePointer<cco_context>?
    switch cco_create(stackBytes, { context, _ in Fiber.main(context) }, nil, &context) {
    case CCO_OK: return .success(context!)
    case CCO_STACK_TOO_LARGE: return .failure(.stackTooLarge(stackBytes))
    case let status: return .failure(.outOfStacks(String(cString: cco_status_message(status))))
    }
  }

  /// Gives the stack of an idle fiber back to the pool.
  static func free(_ fiber: UnsafeMutablePointer<cco_context>) {
    fiber.pointee.state = CCO_FINISHED
    let status = cco_destroy(fiber)
    precondition(status == CCO_OK, "an idle fiber was not idle")
  }

  private static func main(_ fiber: UnsafeMutablePointer<cco_context>) {
    Turn.arrive()
    // A null entry is the C core's way of asking a stack to leave for good.
    while fiber.pointee.entry != nil {
      runJob(on: fiber)
      guard let turn = Turn.current else {
        misuse("a forked child has returned from the body of its parent's coroutine; call exec or _exit in the child")
      }
      if turn.pointee.switchesLeft > 0, let lane = turn.pointee.lane {
        turn.pointee.switchesLeft -= 1
        if let next = lane.takeUnstarted(UInt8(truncatingIfNeeded: fiber.pointee.size_class)) {
          turn.pointee.job = next
          next.pointee.context = fiber
          continue
        }
        turn.pointee.leaving = UInt(bitPattern: fiber) | 1
        if let next = lane.takeRunnable() {
          turn.pointee.job = next
          cco_switch(&fiber.pointee.parked, &next.pointee.context.unsafelyUnwrapped.pointee.parked)
          arrive(on: fiber)
          continue
        }
      }
      turn.pointee.leaving = UInt(bitPattern: fiber) | 1
      turn.pointee.job = nil
      cco_switch(&fiber.pointee.parked, &turn.pointee.base)
      arrive(on: fiber)
    }
  }

  /// Back on an idle fiber's stack: with a job, or to leave for good, and then nobody's turn need be on this thread.
  private static func arrive(on fiber: UnsafeMutablePointer<cco_context>) {
    if fiber.pointee.entry != nil { Turn.arrive() }
  }

  /// Runs the turn's job to its end.
  ///
  /// Not inlined: whatever it retains must be released before the fiber parks.
  @inline(never)
  private static func runJob(on fiber: UnsafeMutablePointer<cco_context>) {
    let job = Turn.current.unsafelyUnwrapped.pointee.job.unsafelyUnwrapped
    job.pointee.waitKind.store(WaitKind.nothing.rawValue, ordering: .relaxed)
    fiber.pointee.label = job.label
    job.handle._withUnsafeGuaranteedRef { $0.runner($0) }
    cco_restore_floating_point()
    job.pointee.context = nil
    AnyJob.retire(job)
    // After the result has been destroyed, which may overflow the stack as well.
    fiber.pointee.label = nil
  }
}
