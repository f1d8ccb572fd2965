import CCoroutine
import Coroutine
import Dispatch
import Foundation
import Synchronization
import Testing

/// How many rounds a test does: `count` times what CO_STRESS says.
private func rounds(_ count: Int) -> Int {
  let factor = ProcessInfo.processInfo.environment["CO_STRESS"].flatMap(Double.init) ?? 1
  return max(1, Int(Double(count) * factor))
}

private enum Request {
  @TaskLocal static var user = -1
}

private let tenant = CoroutineLocal(default: -1)

@Suite("Generators in great numbers", .serialized, .timeLimit(.minutes(5)))
struct GeneratorStressTests {
  private final class Counted: Sendable {
    static let live = Atomic(0)
    init() { Self.live.wrappingAdd(1, ordering: .relaxed) }
    deinit { Self.live.wrappingSubtract(1, ordering: .relaxed) }
  }

  private static var residentPages: Int {
    let text = (try? String(contentsOfFile: "/proc/self/statm", encoding: .utf8)) ?? ""
    return text.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
  }

  private func createStepDrop(_ count: Int) {
    for number in 0..<count {
      let object = Counted()
      let generator = co_sequence(of: Int.self) { yield in
        try withExtendedLifetime((object, Counted())) {
          try yield(number)
          try yield(-1)
        }
      }
      #expect(generator.next() == number)
    }
  }

  @Test func `a million created, stepped once and dropped leave memory flat and objects balanced`() {
    createStepDrop(rounds(10_000))
    let (pages, stacks) = (Self.residentPages, cco_stacks().live)
    createStepDrop(rounds(1_000_000))
    #expect(Counted.live.load(ordering: .relaxed) == 0)
    #expect(cco_stacks().live <= stacks + 64, "other tests run beside this one, but not a million stacks")
    #expect(Self.residentPages - pages < 4096, "grew by more than 16 MiB")
  }

  @Test func `many at once, dropped in another order, leave nothing`() {
    for round in 0..<rounds(10) {
      var generators = (0..<1_000).map { number in
        co_sequence(of: Int.self) { yield in
          try withExtendedLifetime(Counted()) { for value in number... { try yield(value) } }
        }
      }
      for generator in generators { _ = generator.next() }
      var random = SystemRandomNumberGenerator()
      generators.shuffle(using: &random)
      for index in generators.indices { #expect(generators[index].next() != nil, "round \(round)") }
      generators.removeAll()
      #expect(Counted.live.load(ordering: .relaxed) == 0)
    }
  }

  private final class Box: @unchecked Sendable {
    // Sound because the generator that uses it is stepped by one thread at a time.
    var count = 0
  }

  private struct Handed: @unchecked Sendable {
    // Sound because the threads take turns, by semaphores.
    let generator: Generator<Int, Never, Void>
  }

  @inline(never)
  private static func change(_ value: inout Int, _ body: (inout Int) throws -> Void) rethrows { try body(&value) }

  @Test func `handed from thread to thread inside an inout access and two bindings, thousands of times`() {
    let steps = rounds(20_000)
    let box = Box()
    let generator = co_sequence(of: Int.self) { yield in
      for number in 0... {
        try Request.$user.withValue(number) {
          try tenant.withValue(number) {
            try Self.change(&box.count) { count in
              count += 1
              try yield(Request.user == number && tenant.value == number ? count : -1)
              count += 0
            }
          }
        }
      }
    }
    let handed = Handed(generator: generator)
    let turns = (0..<3).map { _ in DispatchSemaphore(value: 0) }
    let end = DispatchGroup()
    let wrong = Atomic(0)
    for thread in 0..<3 {
      end.enter()
      Thread.detachNewThread {
        var step = thread
        while step < steps {
          turns[thread].wait()
          Request.$user.withValue(-7) {
            if handed.generator.next() != step + 1 || Request.user != -7 || tenant.value != -1 {
              wrong.wrappingAdd(1, ordering: .relaxed)
            }
          }
          turns[(thread + 1) % 3].signal()
          step += 3
        }
        end.leave()
      }
    }
    turns[0].signal()
    end.wait()
    #expect(wrong.load(ordering: .relaxed) == 0)
  }

  @Test func `stepped by coroutines of several queues in turn while the body waits, thousands of times`() async throws {
    let steps = rounds(5_000)
    let generator = co_sequence(of: Int.self) { yield in
      for number in 0... {
        try co_yield()
        try tenant.withValue(number) { try yield(tenant.value) }
        if number % 16 == 0 { try co_delay(.microseconds(1)) }
      }
    }
    let handed = Handed(generator: generator)
    let queues = (0..<3).map { DispatchQueue(label: "stress.generator.\($0)") }
    for step in 0..<steps {
      let value = try await co_launch(on: queues[step % 3]) { handed.generator.next() }.value
      #expect(value == step)
    }
  }
}
