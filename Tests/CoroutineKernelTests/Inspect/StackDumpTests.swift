import Foundation
import Testing

@testable import Coroutine

// Both do something after the call, or its frame would replace theirs, and not the same, or the optimiser would make
// one function of both.

@inline(never)
private func waitsInA(_ gate: Gate, _ trace: Flag) throws {
  try gate.pass()
  trace.raise()
}

@inline(never)
private func waitsInB(_ gate: Gate, _ trace: Flag) throws {
  try gate.pass()
  if !trace.isRaised { trace.raise() }
}

@inline(never)
private func descends(_ depth: Int, _ gate: Gate, _ trace: Flag) throws {
  if depth > 1 { try descends(depth - 1, gate, trace) } else { try waitsInA(gate, trace) }
  if !trace.isRaised { trace.raise() }
}

/// Not part of its caller, where optimised code has a place for each.
@inline(never)
private func sleeper(_ time: Duration) -> Job<Void> { co_launch { try co_delay(time) } }

/// The two forms of a snapshot for others: grouped text, and JSON.
@Suite("Grouped dumps and JSON", .timeLimit(.minutes(10)))
struct StackDumpTests {
  @Test(.enabled(if: !isSanitized)) func `equal stacks and waits are one group, the largest first`() async throws {
    let text = try await onCoroutine(on: taggedQueue("dump.stacks")) {
      let (gate, trace) = (Gate(), Flag())
      for index in 0..<3 { co_launch(name: "b\(index)") { try waitsInB(gate, trace) } }
      for index in 0..<50 { co_launch(name: "a\(index)") { try waitsInA(gate, trace) } }
      try co_delay(.milliseconds(1))
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gate.open()
      return text
    }
    let groups = text.split(separator: "\n\n").map(String.init)
    #expect(groups[0].hasPrefix("54 live coroutines in 3 groups"), "\(text)")
    #expect(
      groups[1].contains(#/^50 waiting, longest \d+ ms, median \d+ ms, for a promise \(Promise<\(\)> 0x/#),
      "\(text)"
    )
    #expect(groups[1].contains("waitsInA") && !groups[1].contains("waitsInB"))
    #expect(groups[1].contains("launched at CoroutineKernelTests/StackDumpTests.swift:"))
    #expect(!groups[1].contains("StackRunner"))
    #expect(groups[2].hasPrefix("3 waiting") && groups[2].contains("waitsInB") && groups[2].contains("\"b0\""))
    #expect(groups[3].hasPrefix("1 running"))
  }

  @Test(.enabled(if: !isSanitized)) func `of many things that a group waits for the number is told, and one`()
    async throws
  {
    let text = try await onCoroutine(on: taggedQueue("dump.things")) {
      let trace = Flag()
      let gates = (0..<5).map { _ in Gate() }
      for gate in gates + [gates[0]] { co_launch { try waitsInA(gate, trace) } }
      let sleepers = (1...3).map { sleeper(.seconds(100 * $0)) }
      try co_yield()
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gates.forEach { $0.open() }
      sleepers.forEach { $0.cancel() }
      return text
    }
    #expect(
      text.contains(#/\n6 waiting, .* for a promise \(5 different ones, 2 for Promise<\(\)> 0x[0-9a-f]+, created at /#),
      "\(text)"
    )
    #expect(text.contains(#/\n3 waiting, .* for a delay\n/#), "\(text)")
  }

  @Test(.enabled(if: !isSanitized)) func `of more things than are told apart the dump says that there are more`()
    async throws
  {
    let text = try await onCoroutine(on: taggedQueue("dump.many")) {
      let trace = Flag()
      let gates = (0..<1_100).map { _ in Gate() }
      for gate in gates { co_launch { try waitsInA(gate, trace) } }
      try co_yield()
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gates.forEach { $0.open() }
      return text
    }
    let heading = #/\n1100 waiting, .* for a promise \(1024 or more different ones, for example Promise<\(\)> 0x/#
    #expect(text.contains(heading), "\(text)")
  }

  @Test(.enabled(if: !isSanitized)) func `a function that calls itself is one line, and all depths are one group`()
    async throws
  {
    let text = try await onCoroutine(on: taggedQueue("dump.depths")) {
      let (gate, trace) = (Gate(), Flag())
      for depth in [23, 24, 40] { co_launch { try descends(depth, gate, trace) } }
      try co_yield()
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gate.open()
      return text
    }
    #expect(text.contains("\n3 waiting, ") && text.components(separatedBy: "waitsInA").count == 2, "\(text)")
    #expect(text.contains(#/descends\(.*, 22 times\n/#), "\(text)")
  }

  @Test(.enabled(if: !isSanitized)) func `what runs on another stack has no frames of the switch below it`()
    async throws
  {
    let text = try await onCoroutine(on: taggedQueue("dump.calls")) {
      let (gate, trace) = (Gate(), Flag())
      co_launch { try co_withStack(.bytes(1 << 20)) { try waitsInA(gate, trace) } }
      try co_yield()
      let text = StackDump.text(of: [QueueHost.current.unsafelyUnwrapped])
      gate.open()
      return text
    }
    #expect(text.contains("waitsInA"), "\(text)")
    #expect(!text.contains("run_call") && !text.contains("move_to") && !text.contains("cco_"), "\(text)")
  }

  @Test(.enabled(if: isSanitized)) func `a build with a sanitizer says that it reads no stacks`() {
    #expect(CoroutineRuntime.dump(.stacks).contains("stacks off: this build has a sanitizer"))
    #expect(CoroutineRuntime.snapshot(stacks: true).coroutines.allSatisfy { $0.stack.isEmpty && !$0.isTorn })
  }

  @Test(arguments: [
    ("function signature specialization <Arg[2] = Dead> of static A.f(_: B) -> ()", "static A.f(_: B) -> ()"),
    ("merged generic specialization <() -> C<D>, E> of closure #1 in F.g<H>() -> I", "closure #1 in F.g<H>() -> I"),
    ("partial apply forwarder for closure #1 () -> () in J.k()", "closure #1 () -> () in J.k()"),
    ("generic specialization <L of M", "generic specialization <L of M"), ("N.o<P>() -> Q", "N.o<P>() -> Q"),
  ])
  func `a function has its name in the source, and not that of a specialisation`(_ made: String, _ source: String) {
    #expect(Symbols.ofSource(made) == source)
  }

  @Test func `a list is what dump returns`() {
    #expect(CoroutineRuntime.dump(.list).contains("live coroutine"))
  }

  @Test func `JSON is what a snapshot encodes to, in parts, with every name as given`() async throws {
    let name = "a\"b\\c\n\u{1B}\u{7F}\u{0}é\u{202E}\u{1F600}"
    let gate = Gate()
    let jobs = (0..<600).map { _ in co_launch(name: name) { try gate.pass() } }
    let id = jobs[0].id
    // One that has run for 50 ms has a thread, and what that does: it may lose the processor while it runs.
    while !jobs[0].record.seemsWaiting { await Task.yield() }
    var (data, parts) = (Data(), 0)
    CoroutineRuntime.snapshotJSON(stacks: true) {
      data.append(contentsOf: $0)
      parts += 1
    }
    let decoded = try JSONDecoder().decode(CoroutineRuntime.Snapshot.self, from: data)
    gate.open()
    for job in jobs { try await job.value }
    let entry = try #require(decoded.coroutines.first { $0.id == id })
    #expect(entry.name == name)
    #expect(parts > 1 && entry.isCut == false && entry.thread == nil && entry.activity == nil)
    let again = try JSONDecoder().decode(
      CoroutineRuntime.Snapshot.Coroutine.self,
      from: try JSONEncoder().encode(entry)
    )
    #expect(again.name == name && again.since == entry.since && again.stack == entry.stack)
    #expect(again.wait?.text == entry.wait?.text && again.launchSite == entry.launchSite)
  }

  @Test func `JSON stops at the first error of its receiver`() {
    var parts = 0
    #expect(throws: Oops.self) {
      try CoroutineRuntime.snapshotJSON { _ in
        parts += 1
        throw Oops("full")
      }
    }
    #expect(parts == 1)
    // A walk that ended so must not keep slabs mapped for ever: the next one begins and ends as usual.
    _ = CoroutineRuntime.snapshot(stacks: true)
  }
}
