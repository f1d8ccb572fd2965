/// A pool of workers whose jobs are closures.
final class PoolOfJobs {
  let run: Explorer
  let pool: WorkerPool
  private var bodies: [(job: AnyJob, body: () -> Void)] = []
  private(set) var ended: [Int] = []

  init(_ run: Explorer, workers: Int) {
    self.run = run
    pool = WorkerPool(count: workers, label: "")
    for (index, worker) in pool.workers.enumerated() {
      run.thread("worker \(index)") { [unowned self] in
        worker.host { drain(worker) }
      }
    }
    run.atEnd { [self] in
      run.require(ended.sorted() == Array(bodies.indices), "ended: \(ended) of \(bodies.count) jobs")
      // The bodies hold this object.
      bodies = []
    }
  }

  func job(_ body: @escaping () -> Void) -> JobRef {
    let job = AnyJob(on: pool.workers[0])
    bodies.append((job, body))
    return job.record
  }

  /// The steps of Scheduler.run, with nothing but messages, their work, and ready jobs.
  private func drain(_ worker: Scheduler) {
    pool.markBusy(worker)
    while true {
      worker.inbox.takeAll(as: worker.worker) { worker.handle($0) }
      if case .work(let item)? = worker.work.popFirst() {
        item.run()
      } else if let job = worker.readyQueue.popFirst() {
        perform(job, worker)
      } else if !worker.inbox.hasMessages, !pool.steal(for: worker), worker.endDrain() {
        return
      }
    }
  }

  private func perform(_ job: JobRef, _ worker: Scheduler) {
    let scheduler = job.pointee.scheduler.now
    run.require(scheduler.toOpaque() == Unmanaged.passUnretained(worker).toOpaque(), "a job runs where it is not")
    let number = bodies.firstIndex { $0.job.record == job }!
    bodies[number].body()
    ended.append(number)
  }
}
