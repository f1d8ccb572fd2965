import Synchronization
import Testing

// WorkerPool/TakeOver.swift: a worker that does not reach its ready job and its messages, or that returns while another
// one takes them over. The watchdog looks before it asks.
//
// Left out: interrupts (JobHoldTests has them), due timers, handlers, spare workers.

extension InterleavingTests {
  @Suite struct TakeOverTests {
    @Test func `what waits behind a job that does not end runs on another worker`() {
      let found = Explorer.explore(preemptions: 2) { Self.model($0, returns: false) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `every job runs once if the worker returns in the middle`() {
      // With a second preemption, which takes 20 seconds in a debug build, it was run by hand: no failure.
      let found = Explorer.explore(preemptions: 1) { Self.model($0, returns: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `every job runs once if two workers have been asked`() {
      let found = Explorer.explore(preemptions: 1) { Self.model($0, returns: true, rescuers: 2) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `every job runs once if a worker that has been asked is stuck itself`() {
      let found = Explorer.explore(preemptions: 1) { Self.model($0, returns: true, rescuers: 2, isChain: true) }
      #expect(found.failure == nil, "\(found)")
    }

    // Puts the message back without seeing that the worker has gone idle meanwhile.
    @Test func `a job that stays in the inbox is lost without the comparison that puts it back`() {
      let fault = Fault.compares(mask: 0, in: "putBack(_:oldest:)")
      #expect(Explorer.explore(preemptions: 2, with: fault) { Self.model($0, returns: true) }.failure != nil)
    }

    /// Worker 0 runs a job behind which one is ready, and to which two are sent; the second one keeps its thread.
    ///
    /// `returns`: the job ends by itself, at any time. Otherwise it ends when the movable ones have run. `isChain`: the
    /// last rescuer is asked to take over from the first one, which has been asked, and not from the victim.
    private static func model(_ run: Explorer, returns: Bool, rescuers: Int = 1, isChain: Bool = false) {
      let world = PoolOfJobs(run, workers: 1 + rescuers)
      let victim = world.pool.workers[0]
      let (isStuck, hasRunReady, hasRunSent) = (Gate(), Gate(), Gate())
      let ready = world.job { hasRunReady.open() }
      let sent = world.job { hasRunSent.open() }
      let kept = world.job { run.require(victim.isRunningHere, "a job that keeps its thread was moved") }
      _ = kept.pointee.flags.bitwiseOr(JobFlags.keepsThread, ordering: .relaxed)
      victim.readyQueue.markKept(true)
      let first = world.job {
        victim.readyQueue.append(ready)
        isStuck.open()
        if returns { return }
        hasRunReady.pass()
        hasRunSent.pass()
      }
      victim.push(.job(first))
      run.thread("watchdog") {
        isStuck.pass()
        victim.push(.job(sent))
        victim.push(.job(kept))
        if rescuers == 1 {
          let finds = victim.hasWorkToTakeOver(at: 0)
          run.require(returns || finds, "the watchdog does not see the work of a stuck worker")
        }
        let workers = world.pool.workers
        for (index, rescuer) in workers.enumerated().dropFirst() {
          rescuer.askToTakeOver(from: isChain && index > 1 ? workers[index - 1] : victim)
        }
      }
    }
  }
}
