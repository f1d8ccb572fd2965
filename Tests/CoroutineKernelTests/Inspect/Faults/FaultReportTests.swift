import Dispatch
import Foundation
import Testing

@testable import Coroutine

/// The faults of a server that metrics and the report of a crash show best.
@Suite("The ten faults of a server: numbers and reports", .timeLimit(.minutes(10)))
struct FaultReportTests {
  @Test func `8. a consumer that has ended: its channel is full, and its error is reported with its name`() async throws
  {
    let result = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      alarm(300)
      let faults = Faults()
      CoroutineRuntime.keepEnded()
      faults.endTheConsumer()
      settle(4)
      // The error is reported by the same turn of the queue that has ended the consumer, and maybe after that.
      faults.queue.sync {}
      // In optimised code a send may wait at two places of one function, which are two groups.
      let groups = CoroutineRuntime.dump(.stacks).components(separatedBy: "\n\n").dropFirst()
      let waiting = #/^(\d+) waiting, .* to send \(Channel<String> 0x[0-9a-f]+, 16 of 16 values buffered, /#
      #expect(groups.compactMap { $0.firstMatch(of: waiting) }.compactMap { Int($0.1) }.reduce(0, +) == 4, "\(groups)")
      let last = #/, last receiver #\d+ "log writer", which failed with BadRequestError \d+ m?s ago\)/#
      for group in groups where group.contains(" to send (") {
        #expect(group.contains(last), "\(group)")
        #expect(isSanitized || group.contains("Faults.logLine("), "\(group)")
      }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    #expect(text.contains("Coroutine: unhandled error in \"log writer\" ("), "\(text)")
  }

  @Test func `9. all threads for blocking calls are taken: a metric counts the bodies that wait for one`() async {
    await #expect(processExitsWith: .success) {
      alarm(300)
      let fileIsThere = DispatchSemaphore(value: 0)
      Faults().useUpBlockingThreads(fileIsThere)
      settle(8)
      // The second thread may be about to begin.
      var metrics = CoroutineRuntime.metrics
      while metrics.blockingThreads != 2 || metrics.blockingWaiting != 6 {
        sched_yield()
        metrics = CoroutineRuntime.metrics
      }
      #expect(metrics.waiting == ["blocking": 8], "\(metrics.waiting)")
      #expect(CoroutineRuntime.metricsText.split(separator: "\n").contains("coroutine_blocking_waiting 6"))
      let stacks = CoroutineRuntime.dump(.stacks)
      #expect(stacks.contains(#/8 waiting, .* for blocking work \(2 on threads, 6 in the queue\)/#), "\(stacks)")
      // A thread that has taken a body may be on its way to the semaphore.
      var list = CoroutineRuntime.dump(.list)
      while list.matches(of: #/for blocking work \(on thread \d+, in futex\(2\)\)/#).count != 2 {
        sched_yield()
        list = CoroutineRuntime.dump(.list)
      }
      for before in 0..<6 { #expect(list.contains("(in the queue, \(before) before it)"), "\(list)") }
      for _ in 0..<8 { fileIsThere.signal() }
    }
  }

  @Test func `10. a crash names the coroutine before all else`() async throws {
    let result = await #expect(processExitsWith: .failure, observing: [\.standardErrorContent]) {
      alarm(300)
      Faults().crash()
      while true { sched_yield() }
    }
    let text = String(decoding: try #require(result).standardErrorContent, as: UTF8.self)
    let line = try #require(text.split(separator: "\n").first { $0.hasPrefix("coroutine \"parser\" (id ") })
    #expect(
      line.contains(
        #/ got SIG(ILL|TRAP|ABRT) at 0x[0-9a-f]+; launched at [^ ]*FaultPrograms.swift:\d+; frames .*; images /#
      )
    )
  }
}
