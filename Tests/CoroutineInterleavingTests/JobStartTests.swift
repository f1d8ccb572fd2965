import Synchronization
import Testing

// Job/JobStart.swift: a job that is cancelled as its queue comes to it, and who releases its body.

extension InterleavingTests {
  @Suite struct JobStartTests {
    @Test func `a job that is cancelled as it begins runs, or is settled by one who cancels it`() {
      let found = Explorer.explore(Self.race)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a body that never runs is released once, before its scope ends`() {
      let found = Explorer.explore(Self.released)
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

    @Test(arguments: [Fault.torn("takeBody()"), .skipped("takeBody()")])
    func `a body is released twice, or never, without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault, Self.released).failure != nil)
    }

    // MARK: Models

    /// A job whose queue comes to it, and those who cancel it.
    private final class World {
      let run: Explorer
      let job = AnyJob(on: Scheduler())
      var runs = 0
      var drops = 0
      var releases = 0
      /// Open when the job is settled, and when the queue has released the body.
      let (settled, released) = (Gate(), Gate())

      init(_ run: Explorer) {
        self.run = run
        run.thread("queue") { [self] in
          if job.record.claimBegin() & JobFlags.cancelled == 0 {
            runs += 1
            releases += 1
          } else if job.record.takeBody() {
            releases += 1
            released.open()
          }
          settled.open()
        }
      }

      func cancel() {
        guard job.record.claimCancel() else { return }
        drops += 1
        settled.open()
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

    private static func released(_ run: Explorer) {
      let world = World(run)
      run.thread("canceller") { world.cancel() }
      run.thread("owner") {
        world.settled.pass()
        guard world.job.record.isDropped else { return }
        if world.job.record.takeBody() { world.releases += 1 } else { world.released.pass() }
        run.require(world.releases == 1, "the scope ends after \(world.releases) releases")
      }
      run.atEnd { run.require(world.releases == 1, "\(world.releases) releases") }
    }
  }
}
