import CCoroutine
import Coroutine
import Dispatch
import Glibc
import Testing

private enum Request {
  @TaskLocal static var user = -1
}

private let tenant = CoroutineLocal(default: -1)

@Suite("Generators in great numbers", .serialized, .timeLimit(.minutes(10)))
struct GeneratorStressTests {
  private let stress = Stress()

  /// Creates `count` generators, steps each once and releases it; returns the number of correct results.
  private static func createStepDrop(_ count: Int, _ census: Census) -> Int {
    var right = 0
    for number in 0..<count {
      let object = census.citizen()
      let generator = co_sequence(of: Int.self) { yield in
        try withExtendedLifetime((object, census.citizen())) {
          try yield(number)
          try yield(-1)
        }
      }
      if generator.next() == number { right += 1 }
    }
    return right
  }

  /// In a separate process, because the memory of the process is measured.
  @Test func `a million created, stepped once and dropped leave memory flat and objects balanced`() async {
    await #expect(processExitsWith: .success) {
      let (stress, census) = (Stress(), Census())
      _ = Self.createStepDrop(stress.rounds(10_000), census)
      let (pages, stacks) = (Self.residentPages, cco_stacks().live)
      let count = stress.rounds(1_000_000)
      #expect(Self.createStepDrop(count, census) == count)
      #expect(census.now == 0)
      #expect(cco_stacks().live == stacks)
      // Sanitizers keep freed memory for a while, and records of their own.
      let sanitizers = cco_compiled_sanitizers()
      if sanitizers & (CCO_ADDRESS_SANITIZER.rawValue | CCO_THREAD_SANITIZER.rawValue) == 0 {
        #expect(Self.residentPages - pages < 1_024, "grew by more than 4 MiB")
      }
    }
  }

  @Test func `many generators at once, released in another order, leave nothing behind`() {
    let census = Census()
    var random = stress.random(0)
    for round in 0..<stress.rounds(10) {
      var generators = (0..<1_000).map { number in
        co_sequence(of: Int.self) { yield in
          try withExtendedLifetime(census.citizen()) { for value in number... { try yield(value) } }
        }
      }
      for generator in generators { _ = generator.next() }
      #expect(census.now == 1_000)
      generators.shuffle(using: &random)
      #expect(generators.allSatisfy { $0.next() != nil }, "round \(round), \(stress.replay)")
      generators.removeAll()
      #expect(census.now == 0, "round \(round), \(stress.replay)")
    }
  }

  private final class Box: @unchecked Sendable {
    // Sound because the generator that uses it is stepped by one thread at a time.
    var count = 0
  }

  private struct Handed: @unchecked Sendable {
    // Sound because its users take turns.
    let generator: Generator<Int, Never, Void>
  }

  @inline(never)
  private static func change(_ value: inout Int, _ body: (inout Int) throws -> Void) rethrows { try body(&value) }

  @Test func `a generator passes between threads inside an inout access and two bindings, thousands of times`()
    async throws
  {
    let steps = stress.rounds(20_000)
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
    let wrong = Census()
    turns[0].signal()
    try await onThreads(3) { thread in
      var step = thread
      while step < steps {
        turns[thread].wait()
        Request.$user.withValue(-7) {
          if handed.generator.next() != step + 1 || Request.user != -7 || tenant.value != -1 { wrong.change() }
        }
        turns[(thread + 1) % 3].signal()
        step += 3
      }
    }
    #expect(wrong.now == 0)
  }

  @Test func `coroutines of several queues step it in turn while the body waits, thousands of times`() async throws {
    let steps = stress.rounds(5_000)
    let generator = co_sequence(of: Int.self) { yield in
      for number in 0... {
        try co_yield()
        try tenant.withValue(number) { try yield(tenant.value) }
        if number % 16 == 0 { try co_delay(.microseconds(1)) }
      }
    }
    let handed = Handed(generator: generator)
    let queues = queues(3)
    for step in 0..<steps {
      let value = try await co_launch(on: queues[step % 3]) { handed.generator.next() }.value
      #expect(value == step)
    }
  }

  @Test func `a body that is cancelled at a random moment of its wait unwinds, every time`() async throws {
    let census = Census()
    for round in 0..<stress.rounds(2_000) {
      var random = stress.random(round)
      let pause = Int.random(in: 0...40, using: &random)
      let job = co_launch {
        let generator = co_sequence(of: Int.self) { yield in
          try withExtendedLifetime(census.citizen()) {
            while true {
              try co_delay(.microseconds(1))
              try yield(1)
            }
          }
        }
        return generator.reduce(0, +)
      }
      for _ in 0..<pause { sched_yield() }
      job.cancel()
      // If it was cancelled before it started, its body never ran.
      if let steps = try? await job.value { #expect(steps >= 0, "round \(round), \(stress.replay)") }
      #expect(census.now == 0, "round \(round), \(stress.replay)")
    }
  }

  /// The resident pages, according to the kernel.
  private static var residentPages: Int {
    guard let file = fopen("/proc/self/statm", "r") else { return 0 }
    defer { fclose(file) }
    var line = [CChar](repeating: 0, count: 256)
    guard fgets(&line, Int32(line.count), file) != nil else { return 0 }
    let fields = String(decoding: line.prefix { $0 != 0 }.map { UInt8(bitPattern: $0) }, as: UTF8.self)
    return fields.split(separator: " ").dropFirst().first.flatMap { Int($0) } ?? 0
  }
}
