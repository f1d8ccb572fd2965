import Synchronization
import Testing

// Job/JobRecord.swift: a parked job, whose frames a rescuer reads, or its scheduler, while others wake it, take it
// along, or ask it to end. (ImmediateStartTests has the other holder, a starter.)

extension InterleavingTests {
  @Suite struct JobHoldTests {
    /// Who races for the job with its scheduler's drain.
    enum Party { case waker, mover, canceller, rescuer }

    /// Fewer preemptions with more threads.
    @Test(arguments: [
      ([Party.waker, .rescuer], 3),
      ([.canceller, .rescuer], 2),
      ([.canceller, .mover], 2),
      ([.mover, .rescuer], 2),
      ([.rescuer, .rescuer], 2),
      ([.waker, .rescuer, .rescuer], 1),
      ([.canceller, .mover, .rescuer], 1),
    ])
    func `a job is resumed once, and its frames are used by one thread at a time`(
      _ parties: [Party],
      _ preemptions: Int
    ) {
      let found = Explorer.explore(preemptions: preemptions) { Self.model($0, parties) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `so it is with a job that never ran, and waits as it releases its captures`() {
      let found = Explorer.explore { Self.model($0, [.waker, .rescuer], isDropped: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.skipped("stillWaits(_:)"),  // looks at frames of a job that has been woken
      .skipped("tryTake()"),  // looks without `foreign`
      .reads(0, in: "deferIfForeign(_:)"),
    ])
    func `a rescuer looks at the frames of a running job without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.model($0, [.waker, .rescuer]) }.failure != nil)
    }

    @Test(arguments: [
      Fault.skipped("countInspections(by:)"),  // the rescuer does not see that the scheduler inspects
      .torn("countInspections(by:)"),  // overwrites `foreign`
      .torn("tryTake()"),  // overwrites the count
      .reads(0, in: "deferIfForeign(_:)"),
    ])
    func `a rescuer and a scheduler look at the same frames, or neither does, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.model($0, [.canceller, .rescuer]) }.failure != nil)
    }

    @Test func `a job runs on another worker while its frames are looked at, if the inspection is not counted`() {
      let fault = Fault.skipped("countInspections(by:)")
      let found = Explorer.explore(with: fault) { Self.model($0, [.canceller, .mover]) }
      #expect(found.failure?.contains("the job's frames were") ?? false, "\(found)")
    }

    private static func model(_ run: Explorer, _ parties: [Party], isDropped: Bool = false) {
      let world = HeldJob(run)
      world.park(isDropped: isDropped)
      for (number, party) in parties.enumerated() {
        switch party {
        case .waker: run.thread("waker") { world.wake() }
        case .mover:
          world.addDrain(world.away, "away")
          run.thread("mover") { world.wakeAway() }
        case .canceller: run.thread("canceller") { world.interrupt(JobFlags.signalled) }
        case .rescuer: world.addRescuer("rescuer \(number)")
        }
      }
      world.check()
    }
  }
}
