import Synchronization
import Testing

// Job/JobRecord.swift: a job that its starter holds, against a waker and a canceller.

extension InterleavingTests {
  @Suite struct ImmediateStartTests {
    @Test func `a job that is woken while its starter leaves is resumed once, switched out`() {
      let found = Explorer.explore(Self.wokenEarly)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a job that is cancelled while its starter leaves is resumed once, switched out`() {
      let found = Explorer.explore(Self.cancelledEarly)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("release()"),  // the bit that the scheduler leaves behind is overwritten
      .torn("deferIfForeign(_:)"),  // it is left behind when nobody will look
      .skipped("deferIfForeign(_:)"),
      .reads(0, in: "deferIfForeign(_:)"),  // resumed on a stack that is in use
    ])
    func `a woken job is lost or resumed too early without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.wokenEarly).failure != nil)
    }

    @Test(arguments: [Fault.torn("release()"), .reads(0, in: "deferIfForeign(_:)")])
    func `a cancelled job is lost or resumed too early without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.cancelledEarly).failure != nil)
    }

    private static func wokenEarly(_ run: Explorer) {
      let world = HeldJob(run)
      run.thread("starter") { world.job.runImmediately() }
      run.thread("waker") { world.wake() }
      world.check()
    }

    private static func cancelledEarly(_ run: Explorer) {
      let world = HeldJob(run)
      run.thread("starter") { world.job.runImmediately() }
      run.thread("canceller") { world.interrupt(JobFlags.cancelled) }
      world.check()
    }
  }
}
