import CTestSupport
import Dispatch
import Glibc
import Testing

@testable import Coroutine

@Suite("What is awaited and given up", .timeLimit(.minutes(10)))
struct GivenUpTests {
  // In processes of their own, because other tests use the heap. The sanitizers have allocators of their own.
  @Test(.enabled(if: !isSanitized), arguments: GivenUpGroup.allCases)
  func `leaves nothing behind while its source lives`(group: GivenUpGroup) async throws {
    let end = await #expect(processExitsWith: .success, observing: [\.standardOutputContent]) { [group] in
      // They are kept until the end of a test.
      cts_note_throws(false)
      do {
        for line in try await GivenUpRuns(rounds: Self.rounds).grown(of: group) { print("GROWN:", line) }
      } catch { print("GROWN: by an error,", error) }
      cts_note_throws(true)
      fflush(nil)
    }
    let text = String(decoding: try #require(end).standardOutputContent, as: UTF8.self)
    #expect(!text.contains("GROWN"), "\(text)")
  }

  /// The number of rounds of each form, times CO_STRESS.
  private static var rounds: Int {
    let factor = getenv("CO_STRESS").flatMap { Double(String(cString: $0)) } ?? 1
    return max(1_000, Int(2_000 * factor))
  }
}

/// Gives each form of a group up very often, and measures what the heap has grown by.
struct GivenUpRuns: Sendable {
  let rounds: Int

  /// Bytes of each round that are no growth: less than any object.
  ///
  /// Threads cache what they free.
  private static let most = 24

  func grown(of group: GivenUpGroup) async throws -> [String] {
    let forms = Locked<[GivenUpForm]>([])
    let queue = taggedQueue("given up")
    try await co_launch(on: queue) { forms.current = try group.forms() }.value
    var lines: [String] = []
    for form in forms.current {
      for (how, run) in ways(form) {
        // The first rounds fill pools and caches. What is left behind is left behind each time; a table grows once.
        try await run(queue, rounds / 4)
        var bytes = Int.max
        for _ in 0..<5 where bytes > Self.most {
          let before = Int(cts_heap_bytes())
          try await run(queue, rounds)
          // Handlers that the last rounds have posted, and their promises, are not left behind for good.
          let end = ContinuousClock.now + .seconds(3)
          repeat {
            bytes = (Int(cts_heap_bytes()) - before) / rounds
            if bytes > Self.most { await Task.yield() }
          } while bytes > Self.most && ContinuousClock.now < end
        }
        if bytes > Self.most { lines.append("\(form.name), \(how): \(bytes) bytes a round") }
      }
    }
    return lines
  }

  private typealias Run = @Sendable (DispatchQueue, Int) async throws -> Void

  private func ways(_ form: GivenUpForm) -> [(String, Run)] {
    switch form {
    case .coroutine(_, let wait):
      [
        (
          "cancelled",
          { queue, rounds in
            try await co_launch(on: queue) {
              for _ in 0..<rounds {
                let waiter = co_launch(start: .immediate) { try? wait() }
                waiter.cancel()
                try waiter.join()
                // Handlers run here.
                try co_yield()
              }
            }.value
          }
        ),
        (
          "under a deadline",
          { queue, rounds in
            try await co_launch(on: queue) {
              for _ in 0..<rounds {
                _ = try? co_timeout(.nanoseconds(1)) { try wait() }
                try co_yield()
              }
            }.value
          }
        ),
      ]
    case .whole(_, let round):
      [
        (
          "in each round",
          { queue, rounds in
            try await co_launch(on: queue) {
              for _ in 0..<rounds {
                try round()
                try co_yield()
              }
            }.value
          }
        )
      ]
    case .task(_, let wait):
      [
        (
          "cancelled",
          { _, rounds in
            for _ in 0..<rounds {
              let task = Task { try await wait() }
              await Task.yield()
              task.cancel()
              _ = await task.result
            }
          }
        )
      ]
    }
  }
}
