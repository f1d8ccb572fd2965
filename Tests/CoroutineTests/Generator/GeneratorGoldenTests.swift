import Coroutine
import Testing

/// The dialogues and counts of the first iterators' examples, word for word.
@Suite("Generators, golden outputs", .timeLimit(.minutes(10)))
struct GeneratorGoldenTests {
  private let lines = [
    "Today is Friday", "So yestday is Thursday", "And tomorrow is Saturday",
  ]

  @Test func `the talking robot says its lines, then that it is done, for ever`() throws {
    let talk = Generator<String, Never, String> { [lines] yield in
      try yield("Hello, How are you?")
      try yield.all(of: lines)
      try yield("Over")
      return "==talk done=="
    }
    #expect(
      try (0..<7).map { _ in describe(try talk.step()) } == [
        "value Hello, How are you?, done false", "value Today is Friday, done false",
        "value So yestday is Thursday, done false", "value And tomorrow is Saturday, done false",
        "value Over, done false", "value ==talk done==, done true", "value ==talk done==, done true",
      ]
    )
  }

  /// The robot that knows a name and takes a command.
  private func talk(to name: String) -> Generator<String, String, String> {
    Generator { [lines] yield in
      var command: String
      repeat {
        try yield("Hello \(name), How are you?")
        try yield.all(of: lines)
        command = try yield("Over") ?? "Over"
      } while command != "Over"
      return "==talk done=="
    }
  }

  @Test func `the robot starts again when it is told to go on`() throws {
    let talk = talk(to: "乌卡卡")
    for _ in 0..<5 { _ = try talk.step() }
    #expect(describe(try talk.step("again")) == "value Hello 乌卡卡, How are you?, done false")
    for _ in 0..<4 { _ = try talk.step() }
    #expect(describe(try talk.step()) == "value ==talk done==, done true")
  }

  @Test func `three generators count to nine in turn, and the tenth step is the end`() throws {
    func count(_ first: Int) -> Generator<Int, Never, Int> {
      Generator { yield in
        try yield(first)
        try yield(first + 1)
        return first + 2
      }
    }
    let nine = Generator<Int, Never, Void> { yield in
      for first in [1, 4, 7] { try yield(try yield.all(of: count(first))) }
    }
    #expect((0..<10).map { _ in nine.next() } == [1, 2, 3, 4, 5, 6, 7, 8, 9, nil])
  }

  @Test func `a generator of generators of generators keeps counting`() throws {
    func nested(_ depth: Int) -> Generator<Int, Never, Void> {
      co_sequence { yield in
        try yield(depth)
        if depth > 0 { try yield.all(of: nested(depth - 1)) }
        try yield(-depth)
      }
    }
    #expect(Array(nested(3)) == [3, 2, 1, 0, 0, -1, -2, -3])
  }

  @Test func `Fibonacci`() {
    let fibonacci = co_sequence(of: Int.self) { yield in
      var (a, b) = (0, 1)
      while true {
        try yield(a)
        (a, b) = (b, a + b)
      }
    }
    #expect(Array(fibonacci.prefix(10)) == [0, 1, 1, 2, 3, 5, 8, 13, 21, 34])
    #expect(fibonacci.next() == 55)
  }
}
