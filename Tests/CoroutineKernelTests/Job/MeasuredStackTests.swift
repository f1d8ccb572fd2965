import CCoroutine
import CTestSupport
import Foundation
import Testing

@testable import Coroutine

/// Uses the stack of the caller down to an address, in frames of some hundred bytes.
///
/// In optimised code as well: each frame is used after the deeper ones.
@inline(never) @discardableResult
private func dig(downTo address: UInt) -> Int {
  withUnsafeTemporaryAllocation(of: Int.self, capacity: 32) { memory in
    memory.initialize(repeating: 1)
    let below = UInt(bitPattern: cco_frame()) > address ? dig(downTo: address) : 0
    if let bytes = memory.baseAddress { lendToSystem(bytes) }
    return below &+ memory[31]
  }
}

/// Launches a coroutine at a site of a file that does not exist, which uses so many bytes of its stack, and waits for
/// its end; returns the size class that it got.
private func run(
  _ bytes: Int,
  at line: UInt,
  _ stack: StackSize = .measured(atLeast: 1),
  file: StaticString = "Measured.swift"
) throws -> UInt32 {
  try co_launch(stack: stack, file: file, line: line) {
    let context = try #require(cco_context_here())
    if bytes > 0 { dig(downTo: UInt(bitPattern: context) - UInt(bytes)) }
    return context.pointee.size_class
  }.join()
}

/// What a snapshot says of the site at a line of that file.
private func use(at line: Int) -> CoroutineRuntime.Snapshot.StackUse? {
  CoroutineRuntime.snapshot().stackUses.first { $0.launchSite == "Measured.swift:\(line)" }
}

private func sizeClass(_ kibibytes: Int) -> UInt32 { cco_stack_class(kibibytes << 10) }

/// The number of samples after which a site has a size.
private let trusted = 16

// On a serial queue a coroutine that has joined another one runs after all of that one's end, its measurement as well.
@Suite("Measured stacks", .timeLimit(.minutes(5)))
struct MeasuredStackTests {
  @Test func `have the standard size first, and then the smallest class of four times the deepest run`() async throws {
    try await onSerialQueue { () throws -> Void in
      for _ in 0..<trusted { #expect(try run(36 << 10, at: 1) == sizeClass(512)) }
      // 36 KiB and the frames of the runtime: at most 64 KiB in all builds.
      #expect(try run(0, at: 1) == sizeClass(256))
      #expect(try run(100 << 10, at: 1) == sizeClass(256))
      #expect(try run(0, at: 1) == sizeClass(512))
      #expect(try run(200 << 10, at: 1) == sizeClass(512))
      for _ in 0..<100 { #expect(try run(0, at: 1) == sizeClass(1024), "it never decreases") }
    }
  }

  @Test func `grow before enough runs were measured`() async throws {
    try await onSerialQueue { () throws -> Void in
      #expect(try run(200 << 10, at: 2) == sizeClass(512))
      #expect(try run(0, at: 2) == sizeClass(1024))
    }
  }

  @Test func `are never smaller than asked for, and never larger than the largest class`() async throws {
    try await onSerialQueue { () throws -> Void in
      let least = StackSize.measured(atLeast: 1 << 20)
      for _ in 0...trusted { #expect(try run(0, at: 3, least) == sizeClass(1024)) }
      #expect(try run(0, at: 3) < sizeClass(512))
      #expect(try run(6 << 20, at: 3, .measured(atLeast: 16 << 20)) == sizeClass(16 << 10))
      #expect(try run(0, at: 3) == sizeClass(16 << 10))
      let tooLarge = outcome { _ = try run(0, at: 3, .measured(atLeast: (16 << 20) + 1)) }
      #expect(tooLarge == "stackTooLarge")
    }
  }

  @Test func `of immediate starts are measured as well`() async throws {
    try await onSerialQueue { () throws -> Void in
      try co_launch(stack: .measured(atLeast: 1), start: .immediate, file: "Measured.swift", line: 5) {
        let context = try #require(cco_context_here())
        dig(downTo: UInt(bitPattern: context) - 100 << 10)
        try co_yield()
      }.join()
      let seen = try #require(use(at: 5))
      #expect(seen.measured == 1 && seen.deepest > 100 << 10 && seen.deepest < 200 << 10)
    }
  }

  @Test func `are shown by a dump and by snapshots`() async throws {
    try await onSerialQueue { () throws -> Void in
      #expect(use(at: 6) == nil)
      for _ in 0..<trusted { _ = try run(36 << 10, at: 6) }
      let seen = try #require(use(at: 6))
      #expect(seen.measured == trusted && seen.stackBytes == 256 << 10)
      #expect(seen.deepest > 36 << 10 && seen.deepest <= 64 << 10)
      let line =
        "stacks of coroutines launched at Measured.swift:6: \(seen.deepest >> 10) KiB used at most by 16 measured, "
        + "the next has 256 KiB\n"
      #expect(CoroutineRuntime.dump().contains(line))
      #expect(CoroutineRuntime.dump(.stacks).contains(line))
      var json: [UInt8] = []
      CoroutineRuntime.snapshotJSON { json += $0 }
      let encoded = try JSONEncoder().encode(CoroutineRuntime.snapshot())
      for form in [Data(json), encoded] {
        let read = try JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: form)
        let same = try #require(read.stackUses.first { $0.launchSite == seen.launchSite })
        #expect(same.deepest == seen.deepest && same.measured == trusted && same.stackBytes == 256 << 10)
      }
      let older = Data(#"{"coroutines":[],"lateTimers":[]}"#.utf8)
      #expect(try JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: older).stackUses.isEmpty)
    }
  }

  @Test func `that overflow are reported with the launch site and what helps`() async {
    let death = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try await onSerialQueue { () throws -> Void in
        for _ in 0..<trusted { _ = try run(36 << 10, at: 7) }
        _ = try run(1 << 30, at: 7)
      }
    }
    let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
    #expect(
      words.contains(
        /overflowed its stack of 256 KiB; launched at Measured.swift:7\. Of the coroutines from there, 16 were measured, and used \d+ KiB at most\. Ask for more: co_launch\(stack: \.measured\(atLeast: 1 << 19\)\)\./
      ),
      "\(words)"
    )
  }

  @Test func `are not named in the report of a later coroutine of the same stack`() async {
    let death = await #expect(processExitsWith: .overflow, observing: [\.standardErrorContent]) {
      try await onSerialQueue { () throws -> Void in
        #expect(try run(0, at: 8) == sizeClass(512))
        _ = try run(1 << 30, at: 8, .standard)
      }
    }
    let words = String(decoding: death?.standardErrorContent ?? [], as: UTF8.self)
    #expect(words.contains("Give it a larger one: co_launch(stack: .bytes(1 << 20))."), "\(words)")
  }

  @Test func `have the standard size where the kernel does not say which pages were touched`() async {
    await #expect(processExitsWith: .success) {
      precondition(cts_pretend(UInt32(CTS_ALL_PAGES_ARE_THERE)) == 0)
      try await onSerialQueue { () throws -> Void in
        for _ in 0..<4 * trusted { #expect(try run(200 << 10, at: 9) == sizeClass(512)) }
        #expect(use(at: 9) == nil)
      }
    }
  }

  @Test func `are those of 1,024 launch sites, and the others have the standard size`() async {
    await #expect(processExitsWith: .success) {
      try await onSerialQueue { () throws -> Void in
        for line in 1...UInt(2 * CCO_MOST_SITES) { _ = try run(0, at: line) }
        let known = CoroutineRuntime.snapshot().stackUses
        #expect(known.count <= CCO_MOST_SITES && known.count > CCO_MOST_SITES / 2)
        let lines = Set(known.map(\.launchSite))
        let unknown = try #require((1...UInt(2 * CCO_MOST_SITES)).first { !lines.contains("Measured.swift:\($0)") })
        for _ in 0...trusted { #expect(try run(0, at: unknown) == sizeClass(512)) }
      }
    }
  }

  @Test func `of many launches on all workers are all counted, and the deepest wins`() async throws {
    let (jobs, sites) = (40, UInt(8))
    try await onCoroutine {
      try co_scope { scope in
        for number in 0..<jobs {
          for site in 0..<sites {
            // Enough for the deep one, which may begin after most others have ended.
            scope.launch(stack: .measured(atLeast: 128 << 10), file: "Many.swift", line: site + 1) {
              let context = try #require(cco_context_here())
              let bytes = number == jobs / 2 ? 100 << 10 : number << 8
              dig(downTo: UInt(bitPattern: context) - UInt(bytes))
              try co_yield()
            }
          }
        }
      }
    }
    // A measurement comes after the end of its coroutine.
    while CoroutineRuntime.snapshot().stackUses.filter({ $0.launchSite.hasPrefix("Many") }).map(\.measured).reduce(0, +)
      < jobs * Int(sites)
    { await Task.yield() }
    let seen = CoroutineRuntime.snapshot().stackUses.filter { $0.launchSite.hasPrefix("Many") }
    #expect(seen.map(\.measured) == Array(repeating: jobs, count: Int(sites)))
    #expect(seen.allSatisfy { $0.deepest > 100 << 10 && $0.deepest < 200 << 10 && $0.stackBytes == 512 << 10 })
  }

  @Test func `of generators have the standard size, or what is asked for`() throws {
    let generator = Generator<Int, Void, Void>(stack: .measured(atLeast: 1)) { yield in try yield(1) }
    let first = generator.next()
    #expect(first == 1)
    #expect(StackSize.measured(atLeast: 1).unmeasured == .standard)
    #expect(StackSize.measured(atLeast: 1 << 20).unmeasured == .bytes(1 << 20))
  }

  @Test func `are described, compared and made larger as others are`() {
    #expect(StackSize.measured(atLeast: 4096).description == "measured(atLeast: 4096)")
    #expect(StackSize.measured(atLeast: -1) == .measured(atLeast: 1))
    #expect(StackSize.measured(atLeast: 4096) != .bytes(4096))
    #expect(StackSize.measured(atLeast: 1).atLeast(.bytes(4096)) == .measured(atLeast: 4096))
    #expect(StackSize.bytes(4096).atLeast(.measured(atLeast: 1)) == .measured(atLeast: 4096))
  }
}
