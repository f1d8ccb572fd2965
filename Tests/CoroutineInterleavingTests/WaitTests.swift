import Synchronization
import Testing

// Wait/Waiter.swift and Job/JobRecord.swift: the epoch and state of a job's wait.

extension InterleavingTests {
  @Suite struct WaitTests {
    @Test func `of all that race for a wait one ends it, and no later wait`() {
      let found = Explorer.explore(Self.race)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a delivery does not overtake a cancellation by the same thread`() {
      let found = Explorer.explore(Self.cancelled)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("claim(_:_:)"),  // two see the wait
      .compares(mask: 0xFF, in: "claim(_:_:)"),  // without the epoch: an old token ends the second wait
    ])
    func `a wait ends twice, or for another's reason, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.race).failure != nil)
    }

    @Test func `a delivery overtakes a cancellation without the look at the flags`() {
      #expect(Explorer.explore(with: .reads(0, in: "claim(_:_:)"), Self.cancelled).failure != nil)
    }

    // MARK: Models

    /// A job that waits as often as there are `gates`, each opened when the wait is published.
    private final class World {
      let run: Explorer
      let scheduler = Scheduler()
      let job: AnyJob
      let gates: [Gate]
      var epochs: [WaitEpoch] = []
      var winners: [[UInt8]]
      var reasons: [UInt8] = []

      init(_ run: Explorer, waits: Int) {
        self.run = run
        job = AnyJob(on: scheduler)
        job.isThread = true
        gates = (0..<waits).map { _ in Gate() }
        winners = Array(repeating: [], count: waits)
        run.thread("job") { [unowned self] in
          Carrier.enter(scheduler) { carrier in
            for gate in gates {
              epochs.append(job.record.beginWait(.callback))
              gate.open()
              reasons.append(Carrier.park(carrier, job.record))
            }
          }
        }
        run.atEnd { [self] in
          run.require(winners == reasons.map { [$0] }, "won: \(winners), ended: \(reasons)")
        }
      }

      /// Claims the wait with that number, and wakes the job.
      func end(_ wait: Int, _ reason: UInt8) -> Bool {
        guard job.record.claim(epochs[wait], reason) else { return false }
        winners[wait].append(reason)
        Carrier.makeReady(job.record)
        return true
      }
    }

    private static func race(_ run: Explorer) {
      let world = World(run, waits: 2)
      run.thread("timer") {
        world.gates[0].pass()
        _ = world.end(0, WakeReason.timer)
      }
      run.thread("values") {
        for wait in 0..<2 {
          world.gates[wait].pass()
          _ = world.end(wait, wait == 0 ? WakeReason.delivered : WakeReason.firstCase)
        }
      }
    }

    private static func cancelled(_ run: Explorer) {
      let world = World(run, waits: 1)
      run.thread("canceller") {
        world.gates[0].pass()
        world.job.record.pointee.flags.bitwiseOr(JobFlags.cancelled, ordering: .acquiringAndReleasing)
        run.require(!world.end(0, WakeReason.delivered), "the value was delivered after the cancellation")
      }
      run.thread("interrupt") {
        world.gates[0].pass()
        _ = world.end(0, WakeReason.cancelled)
      }
    }
  }
}
