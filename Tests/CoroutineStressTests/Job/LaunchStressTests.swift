import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("Stress: launching", .timeLimit(.minutes(10)))
struct LaunchStressTests {
  /// Counts without protection: its queue must protect it.
  private final class Tally: @unchecked Sendable {
    // Sound because only coroutines of one serial queue access it; the test checks that they exclude each other.
    var count = 0
    var latest: [Int: Int] = [:]
    var disorder = 0
  }

  @Test func `a storm of launches from threads onto one queue: all run, one at a time, in each thread's order`()
    async throws
  {
    let stress = Stress()
    let (threads, each) = (4, stress.rounds(20_000))
    let queue = DispatchQueue(label: "coroutine.stress.storm")
    let tally = Tally()
    let ended = Census()
    let all = Promise<Void>()
    try await onThreads(threads) { thread in
      for number in 0..<each {
        co_launch(on: queue) {
          if let before = tally.latest[thread], before >= number { tally.disorder += 1 }
          tally.latest[thread] = number
          let count = tally.count
          if number.isMultiple(of: 16) { try co_yield() } else { tally.count = count + 1 }
          if ended.change() == threads * each { all.fulfill(()) }
        }
      }
    }
    try await co_launch { try co_await(all) }.value
    let yielding = (0..<each).filter { $0.isMultiple(of: 16) }.count
    let (count, disorder) = try await co_launch(on: queue) { (tally.count, tally.disorder) }.value
    #expect(count == threads * (each - yielding), "\(stress.replay)")
    #expect(disorder == 0, "\(stress.replay)")
  }

  /// Storms of tiny jobs make stealing unprofitable; then two jobs come that must run at the same time.
  @Test(.enabled(if: Processors.usable > 1, "two jobs that wait for one another on one processor would wait for ever"))
  func `after storms of tiny jobs a pair of jobs still gets two workers: no worker stays backed off`() async throws {
    let stress = Stress()
    // Workers of its own, which live for ever: other tests hold the shared ones while they compute.
    let group = Unmanaged.passRetained(WorkerPool(count: 2, label: "storms")).takeUnretainedValue()
    for _ in 0..<stress.rounds(200) {
      let size = stress.rounds(2_000)
      let ran = Census()
      try await co_launch(on: group.workers[0].currentQueue) {
        let all = WaitGroup()
        all.add(size)
        for _ in 0..<size {
          co_launch {
            ran.change()
            all.done()
          }
        }
        try all.wait()
        let (left, right) = (Census(), Census())
        let jobs = [(left, right), (right, left)].map { mine, others in
          co_launch {
            mine.change()
            while others.now == 0 { sched_yield() }
          }
        }
        for job in jobs { try job.join() }
      }
      .value
      #expect(ran.now == size, "\(stress.replay)")
    }
  }

  @Test func `a storm of nested launches on the shared scheduler: all run, none on two threads at once`() async throws {
    let stress = Stress()
    let size = stress.rounds(20_000)
    let objects = Census()
    let overlaps = Census()
    var sum = 0
    let jobs = (0..<size).map { n in
      co_launch { [held = objects.citizen()] in
        let busy = Census()
        var sum = 0
        for _ in 0..<3 {
          if busy.change() != 1 { overlaps.change() }
          sum += try co_launch { n }.join()
          busy.change(by: -1)
          try co_yield()
        }
        held.use()
        return sum
      }
    }
    for job in jobs { sum += try await job.value }
    #expect(sum == 3 * size * (size - 1) / 2, "\(stress.replay)")
    #expect(overlaps.now == 0, "\(stress.replay)")
    await until(objects, shows: 0)
  }

  @Test func `launches on short-lived queues all run, and the queues are released`() async throws {
    let stress = Stress()
    let tracked = Census()
    for _ in 0..<stress.rounds(2_000) { try await Self.useOnce(tracked.citizen()) }
    await until(tracked, shows: 0)
  }

  private static let key = DispatchSpecificKey<Census.Citizen>()

  private static func useOnce(_ citizen: Census.Citizen) async throws {
    let queue = DispatchQueue(label: "coroutine.stress.short-lived")
    queue.setSpecific(key: key, value: citizen)
    try await co_launch(on: queue) { try co_yield() }.value
  }
}
