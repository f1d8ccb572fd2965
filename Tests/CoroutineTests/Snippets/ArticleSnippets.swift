import Coroutine
import Testing

/// The code that the articles of the documentation show, run.
///
/// scripts/lint holds each block of an article against this file, without regard to spaces and line breaks.
@Suite("What the articles show")
struct ArticleSnippets {
  // MARK: Coroutine.md

  @Test func `a job with a name is waited for`() throws {
    let job = co_launch(name: "greeting") {
      try co_delay(.milliseconds(10))
      return "hello"
    }
    print(try job.blockingWait())
    #expect(try job.blockingWait() == "hello")
  }

  // MARK: Generators.md

  @Test func `a sequence without an end`() {
    let fibonacci = co_sequence(of: Int.self) { yield in
      var (a, b) = (0, 1)
      while true {
        try yield(a)
        (a, b) = (b, a + b)
      }
    }
    print(Array(fibonacci.prefix(10)))
    #expect(fibonacci.next() == 55)
  }

  private struct Tree {
    let branches: [Tree]
    let leaf: Character

    func visit(_ body: (Character) throws -> Void) rethrows {
      for branch in branches { try branch.visit(body) }
      if branches.isEmpty { try body(leaf) }
    }
  }

  @Test func `a recursion that yields`() {
    let tree = Tree(branches: "abc".map { Tree(branches: [], leaf: $0) }, leaf: " ")
    let leaves = co_sequence(of: Character.self) { yield in try tree.visit { try yield($0) } }
    #expect(Array(leaves) == ["a", "b", "c"])
  }

  @Test func `a conversation`() throws {
    let talk = Generator<String, String, String> { yield in
      var command: String?
      repeat {
        try yield("Hello")
        command = try yield("Over")
      } while command == "again"
      return "talk done"
    }
    while case .yielded(let line) = try talk.step() { print(line) }
    #expect(try talk.step() == .returned("talk done"))
  }

  // MARK: Promises.md

  private func startWork(_ done: @escaping @Sendable (Int) -> Void) { done(42) }

  @Test func `a promise is awaited`() async throws {
    let result = try await co_launch {
      let answer = Promise<Int>()
      startWork { answer.fulfill($0) }
      let value = try co_await(answer)
      return value
    }.value
    #expect(result == 42)
  }

  private struct Text: Sendable, Equatable {
    var characters: String
    static let empty = Text(characters: "")
  }

  private struct Spinner: Sendable {
    let stopped = Promise<Void>()
    func stop() { stopped.fulfill(()) }
  }

  private func download(_ url: String) -> Promise<[UInt8]> { .failure(TimeoutError()) }

  @Test func `links say what follows`() async throws {
    @Sendable func decode(_ data: [UInt8]) throws -> Text { Text(characters: String(decoding: data, as: UTF8.self)) }
    let (url, spinner) = ("http://localhost/text", Spinner())
    let text = download(url)
      .then { data in try decode(data) }
      .rescue { (_: TimeoutError) in .empty }
      .ensure { spinner.stop() }
    #expect(try await text.value == .empty)
    try await spinner.stopped.value
  }
}
