import Testing

// Scheduler/Inbox.swift and WorkerPool/WorkerPool.swift: Swift jobs that are enqueued from outside, and
// workers that go idle.

extension InterleavingTests {
  @Suite struct SwiftJobTests {
    @Test(arguments: [1, 2])
    func `a Swift job from outside runs although the workers go idle`(workers: Int) {
      let found = Explorer.explore { Self.enqueue($0, workers) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test func `a Swift job runs although the worker that it wakes backs off, and goes idle`() {
      let found = Explorer.explore { Self.enqueue($0, 1, backsOff: true) }
      #expect(found.failure == nil, "\(found)")
    }

    @Test(arguments: [
      Fault.reads(0, in: "isWaitingAtLast"),  // the worker does not look again after its inbox is idle
      .skipped("add(_:_:)"),  // the job is not counted
    ])
    func `a Swift job waits for ever without`(_ fault: Fault) {
      #expect(Explorer.explore(with: fault) { Self.enqueue($0, 1) }.failure != nil)
    }

    // MARK: Model

    /// Workers that are woken for nothing, and a thread that enqueues two Swift jobs meanwhile.
    private static func enqueue(_ run: Explorer, _ workers: Int, backsOff: Bool = false) {
      let pool = WorkerPool(count: workers, label: "")
      var ran: [Int] = []
      for (index, worker) in pool.workers.enumerated() {
        if backsOff { worker.asWorker { $0.stealBackoff.refusals = 1 } }
        run.thread("worker \(index)") { [unowned pool] in
          worker.host { drain(worker, of: pool) }
        }
      }
      run.thread("outside") {
        for number in 0..<2 { pool.enqueue(ExecutorJob { ran.append(number) }) }
      }
      if pool.workers[0].inbox.wakeUp() { pool.workers[0].submit() }
      run.atEnd {
        run.require(ran.sorted() == [0, 1], "ran: \(ran)")
        // A job that has not run is freed by its run. The check holds the pool.
        for worker in pool.workers {
          while let job = worker.asWorker({ $0.swiftJobs.popFirst() }) { UnownedJob(job).runWithoutExecutor() }
        }
      }
    }

    /// The steps of Scheduler.run, with nothing but Swift jobs.
    private static func drain(_ worker: Scheduler, of pool: WorkerPool) {
      pool.markBusy(worker)
      while true {
        worker.inbox.takeAll(as: worker.worker) { worker.handle($0) }
        if pool.runSwiftJobs(of: worker, atMost: 1) > 0 { continue }
        if !worker.inbox.hasMessages, !pool.steal(for: worker), worker.endDrain() { return }
      }
    }
  }
}
