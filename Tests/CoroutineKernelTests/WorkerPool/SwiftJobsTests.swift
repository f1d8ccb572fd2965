import Synchronization
import Testing

@testable import Coroutine

/// The order in which a worker runs its Swift jobs, without a worker: of jobs that are never run.
@Suite("The Swift jobs of a worker", .timeLimit(.minutes(10)))
struct SwiftJobsTests {
  /// A job that is only memory, with the priority of a Task.
  fileprivate final class Fake {
    let job: SwiftJobRef

    init(_ priority: TaskPriority, isYield: Bool = false) {
      let memory = UnsafeMutableRawPointer.allocate(byteCount: 64, alignment: 16)
      memory.initializeMemory(as: UInt.self, repeating: 0, count: 8)
      let kind: UInt32 = isYield ? 195 : 0
      memory.storeBytes(of: kind | UInt32(priority.rawValue) << 8, toByteOffset: 32, as: UInt32.self)
      job = memory.assumingMemoryBound(to: SwiftJobHeader.self)
      job.pointee.executor = UInt(SwiftJobs.level(of: job)) << 2
    }

    deinit { UnsafeMutableRawPointer(job).deallocate() }
  }

  private func names(_ jobs: SwiftJobs, _ fakes: [(String, Fake)]) -> String {
    var names: [String] = []
    while let job = jobs.popFirst() { names.append(fakes.first { $0.1.job == job }?.0 ?? "?") }
    return names.joined(separator: " ")
  }

  @Test func `the job made ready last is next, then due ones, then the levels in order`() {
    let jobs = SwiftJobs()
    let fakes: [(String, Fake)] = [
      ("low", Fake(.background)), ("usual", Fake(.medium)), ("due", Fake(.medium)), ("first", Fake(.medium)),
      ("next", Fake(.medium)),
    ]
    _ = jobs.add(fakes[0].1.job, .back)
    _ = jobs.add(fakes[1].1.job, .back)
    _ = jobs.add(fakes[2].1.job, .due)
    _ = jobs.add(fakes[3].1.job, .next)
    _ = jobs.add(fakes[4].1.job, .next)
    #expect(names(jobs, fakes) == "next due usual first low")
  }

  @Test func `a job of a higher level goes before the next one, which keeps its place in its level`() {
    let jobs = SwiftJobs()
    let fakes: [(String, Fake)] = [("high", Fake(.high)), ("usual", Fake(.medium)), ("next", Fake(.background))]
    _ = jobs.add(fakes[0].1.job, .back)
    _ = jobs.add(fakes[1].1.job, .back)
    _ = jobs.add(fakes[2].1.job, .next)
    #expect(names(jobs, fakes) == "high usual next")
  }

  @Test(arguments: [TaskPriority.high, .medium, .utility, .background])
  func `no job waits longer than the bound, whatever else is made ready`(priority: TaskPriority) {
    for position in [SwiftJobs.Position.next, .due, .back] {
      let jobs = SwiftJobs()
      // Three of its list are ahead of it.
      let ahead = (0..<3).map { _ in Fake(priority) }
      for fake in ahead { _ = jobs.add(fake.job, .back) }
      let last = Fake(priority)
      _ = jobs.add(last.job, .back)
      var (choices, others) = (0, [Fake]())
      while true {
        let other = Fake(.high)
        others.append(other)
        _ = jobs.add(other.job, position)
        _ = jobs.add(Fake.kept(&others).job, .due)
        choices += 1
        if jobs.popFirst() == last.job { break }
        guard choices <= 64 * 4 else { break }
      }
      withExtendedLifetime((ahead, last, others)) { #expect(choices <= 64 * 4, "\(position)") }
      while jobs.popFirst() != nil {}
    }
  }

  @Test func `a thief takes half, the longest waiting first, and the next one last`() {
    let jobs = SwiftJobs()
    let fakes = (0..<5).map { _ in Fake(.medium) }
    for fake in fakes.dropLast() { _ = jobs.add(fake.job, .back) }
    _ = jobs.add(fakes[4].job, .next)
    var stolen = WorkQueue()
    jobs.takeHalf(atLeast: 6, into: &stolen)
    #expect(stolen.isEmpty)
    jobs.takeHalf(atLeast: 2, into: &stolen)
    var taken: [SwiftJobRef] = []
    while case .swiftJob(let job)? = stolen.popFirst() { taken.append(job) }
    #expect(taken == fakes.prefix(3).map(\.job) && jobs.count == 2 && jobs.popFirst() == fakes[4].job)
    jobs.takeHalf(atLeast: 0, into: &stolen)
    #expect(stolen.count == 1 && jobs.count == 0 && !jobs.isWaiting)
  }

  @Test func `a worker that takes from a crowd goes on, although the jobs keep it for no time`() {
    let pool = ownWorkers("crowd")
    // No thread of the pool starts: this one steals in the place of the second worker.
    pool.watching.store(true, ordering: .sequentiallyConsistent)
    pool.idle.store(0, ordering: .sequentiallyConsistent)
    let fakes = (0..<3_000).map { _ in Fake(.medium) }
    let (victim, thief) = (pool.workers[0], pool.workers[1])
    victim.withSwiftJobs { jobs in for fake in fakes { _ = jobs.add(fake.job, .back) } }
    while victim.swiftJobsWaiting >= SwiftJobs.crowd {
      guard pool.steal(for: thief) else { break }
    }
    #expect(victim.swiftJobsWaiting < SwiftJobs.crowd && pool.backoffs.load(ordering: .relaxed) == 0)
    for worker in [victim, thief] { worker.withSwiftJobs { jobs in while jobs.popFirst() != nil {} } }
    withExtendedLifetime(fakes) {}
  }

  @Test func `an offer to a worker that has just got work goes on to the next one`() {
    let pool = ownWorkers("offers", count: 3)
    pool.watching.store(true, ordering: .sequentiallyConsistent)
    // As if a message had come: its drain, which takes the idle bit away, never begins.
    let hasWoken = pool.workers[0].inbox.wakeUp()
    #expect(hasWoken)
    pool.offerWork()
    #expect(pool.workers.map(\.hasThreadOrStarts) == [false, true, false])
  }
}

extension Scheduler {
  fileprivate func withSwiftJobs(_ body: (SwiftJobs) -> Void) {
    readyQueue.pointee.lock.lock()
    defer { readyQueue.pointee.lock.unlock() }
    asWorker { body($0.swiftJobs) }
  }
}

extension SwiftJobsTests.Fake {
  /// Makes another one, which lives as long as `others`.
  fileprivate static func kept(_ others: inout [SwiftJobsTests.Fake]) -> SwiftJobsTests.Fake {
    others.append(SwiftJobsTests.Fake(.high))
    return others[others.count - 1]
  }
}
