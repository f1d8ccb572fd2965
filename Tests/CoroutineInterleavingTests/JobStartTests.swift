import Synchronization
import Testing

// Job/JobRecord.swift: a job that is cancelled as its queue comes to it.

extension InterleavingTests {
  @Suite struct JobStartTests {
    @Test func `a job that is cancelled as it begins runs, or is settled by one who cancels it`() {
      let found = Explorer.explore(Self.race)
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.torn("claimBegin()"),  // begins although it was dropped in between
      .torn("claimCancel()"),  // drops what has begun in between
      .compares(mask: 0, in: "claimBegin()"),  // overwrites the cancellation
    ])
    func `a job runs and is dropped, or neither, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.race).failure != nil)
    }

    // MARK: Models

    /// A job whose queue comes to it, and those who cancel it.
    private final class World {
      let run: Explorer
      let job = AnyJob(on: Scheduler())
      var runs = 0
      var drops = 0

      init(_ run: Explorer) {
        self.run = run
        run.thread("queue") { [self] in
          if job.record.claimBegin() & JobFlags.cancelled == 0 { runs += 1 }
        }
      }

      func cancel() {
        if job.record.claimCancel() { drops += 1 }
      }
    }

    private static func race(_ run: Explorer) {
      let world = World(run)
      for name in ["canceller", "other canceller"] { run.thread(name) { world.cancel() } }
      run.atEnd {
        run.require(world.runs + world.drops == 1, "runs: \(world.runs), dropped: \(world.drops)")
        run.require(world.job.record.isDropped == (world.drops == 1), "the flags are wrong")
      }
    }
  }
}
