import CoroutineTesting
import Dispatch
import Glibc
import Synchronization
import Testing

@testable import Coroutine

/// The name that a coroutine gives itself, on every route to a report.
@Suite("co_current.name", .timeLimit(.minutes(10)))
struct CurrentNameTests {
  private func load(_ file: String) throws { #expect(co_current.name == "importing \(file)") }

  @Test func `it is the launch's until it is set, and again after nil`() async throws {
    let job = co_launch(name: "launched") {
      #expect(co_current.name == "launched")
      let files = ["one", "two"]
      for file in files {
        co_current.name = "importing \(file)"
        try load(file)
      }
      co_current.name = nil
      #expect(co_current.name == "launched")
      co_current.name = "again"
      co_current.name = ""
      return co_current.name
    }
    #expect(try await job.value == "launched" && job.name == "launched")
    #expect(try await co_launch { co_current.name }.value == nil)
  }

  @Test func `outside a coroutine there is none, and setting it does nothing`() {
    co_current.name = "name"
    #expect(co_current.name == nil)
  }

  @Test(arguments: [1, 7, 8, 9, 119, 120, 121, 300])
  func `a long name is cut`(_ count: Int) async throws {
    let text = String((0..<count).map { Character(UnicodeScalar(UInt8(97 + $0 % 26))) })
    let shown = try await co_launch {
      co_current.name = String(repeating: "z", count: 120)
      co_current.name = text
      return co_current.name
    }
    .value
    #expect(shown == String(text.prefix(CoroutineTitle.most)))
  }

  @Test(arguments: [0, 5, 8, 11, 118, 120])
  func `a title keeps its beginning, and is cut to it`(_ kept: Int) async throws {
    let beginning = String(repeating: "b", count: kept)
    try await co_launch(name: "launched") {
      let title = try #require(RunningCoroutine.title)
      co_current.name = beginning
      for end in ["GET /one", "GET /a/longer/path", "P"] {
        let bytes = Array(end.utf8)
        bytes.withUnsafeBytes { bytes in
          withUnsafeBytes(of: UInt8(ascii: " ")) { title.set(keeping: title.count, $0, bytes) }
        }
        #expect(co_current.name == String((beginning + " " + end).prefix(120)))
        title.cut(to: kept)
        #expect(co_current.name == (kept == 0 ? "launched" : beginning))
      }
    }
    .value
  }

  @Test func `every report shows it, escaped`() async throws {
    let name = "serving \u{1B}\"x\""
    let gate = Gate()
    let job = co_launch(name: "launched") {
      co_current.name = name
      try gate.pass()
      throw CancellationError()
    }
    try await co_launch {
      while !job.record.seemsWaiting { try co_yield() }
      let entry = CoroutineRuntime.snapshot().coroutines.first { $0.id == job.id }
      #expect(entry?.name == name)
      let waiting = co_launch { try job.join() }
      while !waiting.record.seemsWaiting { try co_yield() }
      let escaped = #"serving \u{1B}\"x\""#
      #expect(CoroutineRuntime.dump().contains("#\(job.id) \"\(escaped)\""))
      #expect(CoroutineRuntime.dump(.list).contains("for a job (#\(job.id) \"\(escaped)\")"))
      #expect(job.summary.hasPrefix("\"\(escaped)\" (id \(job.id), "))
      gate.open()
      _ = try? waiting.join()
      _ = try? job.join()
    }
    .value
  }

  @Test func `a recording shows it`() async {
    await #expect(processExitsWith: .success) {
      CoroutineRuntime.startRecording()
      let gate = Gate()
      let job = co_launch(name: "launched") {
        co_current.name = "serving 17"
        try gate.pass()
      }
      try await co_launch { while !job.record.seemsWaiting { try co_yield() } }.value
      // The event may come a moment after the word that says that it waits.
      let name = ##""name":"#\##(job.id) \"serving 17\" CoroutineKernelTests/"##
      while !String(decoding: CoroutineRuntime.recording(), as: UTF8.self).contains(name) { sched_yield() }
      gate.open()
      try await job.value
    }
  }

  @Test func `a reader on another thread gets a name that was set, whole`() async throws {
    // Of each name, all characters are equal, and tell its length.
    let names = (1...26).map { String(repeating: Character(UnicodeScalar(UInt8(96 + $0))), count: $0 * 4) }
    let isOver = Flag()
    let job = co_launch {
      var index = 0
      while !isOver.isRaised {
        co_current.name = names[index % names.count]
        index += 1
        if index % 1_000 == 0 { try co_yield() }
      }
    }
    let readers = (0..<2).map { _ in
      co_launch {
        try co_blocking {
          var seen: Set<String> = []
          var reads = 0
          while reads < 20_000 || seen.isEmpty {
            if let name = job.shownName { seen.insert(name) }
            reads += 1
          }
          return seen
        }
      }
    }
    // Not on a thread of the Tasks, for which a busy process may wait while the names change.
    try await onOwnThread {
      for reader in readers {
        let seen = try reader.blockingWait()
        #expect(seen.isSubset(of: names) && !seen.isEmpty)
      }
      isOver.raise()
    }
    try await job.value
  }

  @Test func `the first stall of each kind of name is written, and no more of them than sixteen`() async {
    let words = await #expect(processExitsWith: .success, observing: [\.standardErrorContent]) {
      let names =
        ["GET /a/1", "GET /a/2", "GET /b/1", "GET /b/27"] + (0..<20).map { "\(UnicodeScalar(UInt8(65 + $0)))" }
      for name in names { StallLines.write(stall(name)) }
      while StallLines.writing.load(ordering: .acquiring) > 0 { sched_yield() }
    }
    let text = String(decoding: words?.standardErrorContent ?? [], as: UTF8.self)
    let lines = text.split(separator: "\n").filter { $0.contains("without a suspension") }
    #expect(lines.filter { $0.contains("GET /a/") }.count == 1)
    #expect(lines.filter { $0.contains("GET /b/") }.count == 1)
    #expect(lines.count == 16, "\(text)")
  }
}

/// Of a coroutine of one launch site.
private func stall(_ name: String) -> CoroutineRuntime.Stall {
  CoroutineRuntime.Stall(
    coroutine: "\"\(name)\" (id 1)",
    launchSite: "file:1",
    name: name,
    isTask: false,
    swiftJob: nil,
    duration: .seconds(1),
    worker: "worker",
    thread: 1,
    stack: [],
    activity: .computing,
    awaitsInitialValue: false,
    sinceCancellation: nil,
    isCancelled: false
  )
}
