import Synchronization
import Testing

// WorkerPool/WorkerPool.swift: idle bits, offers, and a worker that goes to sleep.

extension InterleavingTests {
  @Suite struct IdleTests {
    @Test func `of two ready jobs one is stolen while the worker is busy`() {
      let found = Explorer.explore(Self.offer)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a worker whose rest ends while it goes idle looks for work again`() {
      // With a third preemption, which takes a minute in a debug build, it was run by hand: no failure.
      let found = Explorer.explore(preemptions: 2, Self.rest)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a worker whose rest ends too early sleeps on without the last look at the resting bits`() {
      #expect(Explorer.explore(with: .reads(.max, in: "withoutDrain(_:)"), Self.rest).failure != nil)
    }

    @Test func `a worker that goes idle handles what is pushed to it`() {
      let found = Explorer.explore(Self.message)
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `of two held jobs one is stolen after the hold, although the other does not end`() {
      let found = Explorer.explore { _ = Self.makeOffer($0, endsHold: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `held jobs are not stolen before the end of the hold`() {
      #expect(Explorer.explore { _ = Self.makeOffer($0, endsHold: false) }.failure != nil)
    }

    // An offer that comes before the worker's inbox is idle takes the idle bit, and starts no drain.
    //
    // Another step was removed by hand, the second `takeHalf` in `WorkerPool.steal`. The explorer found the same end
    // after 37 schedules with one preemption: worker 1 looks at the queue of worker 0 and finds it empty; worker 0
    // appends two jobs and finds no idle bit; worker 1 sets its bit and goes idle.
    @Test func `ready jobs wait for a busy worker without the last look at the idle bits`() {
      #expect(Explorer.explore(with: .reads(.max, in: "withoutDrain(_:)"), Self.offer).failure != nil)
    }

    @Test func `held jobs wait for a busy worker without the last look at the idle bits`() {
      let fault = Fault.reads(.max, in: "withoutDrain(_:)")
      #expect(Explorer.explore(with: fault) { _ = Self.makeOffer($0, endsHold: true) }.failure != nil)
    }

    @Test func `a message is lost when a worker goes idle over it`() {
      #expect(Explorer.explore(with: .compares(mask: 0, in: "goIdle()"), Self.message).failure != nil)
    }

    // MARK: Models

    /// Worker 0 runs a job that makes two others ready, and that does not end before one of them has run.
    ///
    /// Meanwhile worker 1 goes idle.
    private static func offer(_ run: Explorer) { _ = makeOffer(run) }

    /// The same, but worker 1 rests from stealing until the watchdog ends that.
    private static func rest(_ run: Explorer) {
      let world = makeOffer(run)
      let watches = Gate()
      world.pool.workers[1].asWorker { $0.stealBackoff.refusals = 1 }
      world.pool.workers[0].watchdogStarts = { if world.pool.backingOff.now != 0 { watches.open() } }
      run.thread("watchdog") {
        guard watches.passOrEnd() else { return }
        world.pool.endBackoffs(ofAll: true)
      }
      // It holds the world.
      run.atEnd { world.pool.workers[0].watchdogStarts = {} }
    }

    /// `endsHold`: the two jobs are held as a batch of events is, and the hold ends or does not.
    private static func makeOffer(_ run: Explorer, endsHold: Bool? = nil) -> PoolOfJobs {
      let world = PoolOfJobs(run, workers: 2)
      let hasRun = Gate()
      let others = (0..<2).map { _ in world.job { hasRun.open() } }
      let first = world.job {
        let queue = world.pool.workers[0].readyQueue
        if let endsHold {
          var batch = JobQueue()
          for job in others { batch.append(job) }
          _ = queue.appendHeld(&batch)
          if endsHold { queue.endHold() }
        } else {
          for job in others { queue.append(job) }
        }
        hasRun.pass()
      }
      world.pool.workers[0].push(.job(first))
      // Woken for nothing.
      if world.pool.workers[1].inbox.wakeUp() { world.pool.workers[1].submit() }
      return world
    }

    /// Jobs are sent to a worker that is going idle.
    private static func message(_ run: Explorer) {
      let world = PoolOfJobs(run, workers: 1)
      let jobs = (0..<2).map { _ in world.job {} }
      world.pool.workers[0].push(.job(jobs[0]))
      run.thread("sender") { world.pool.workers[0].push(.job(jobs[1])) }
    }
  }
}
