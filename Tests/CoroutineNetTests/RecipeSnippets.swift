import Coroutine
import CoroutineNet
import Glibc
import Testing

// The code of Sources/Coroutine/Coroutine.docc/Recipes/StreamingAFile.md.

/// Closes a descriptor that came after its caller had been cancelled.
private func giveBack(_ file: Int32) { close(file) }

/// Sends a file in parts of 64 KiB, and reads the next part when the system has taken the last one.
func stream(_ path: String, to connection: Connection) throws {
  let file = try co_blocking(onUndelivered: giveBack) {
    let file = open(path, O_RDONLY)
    if file < 0 { throw ErrnoError(errno) }
    return file
  }
  // The body below is shielded, so nothing reads from the descriptor when it is closed.
  defer { close(file) }
  while true {
    let part = try co_shield {
      try co_blocking {
        var part = [UInt8](repeating: 0, count: 65_536)
        let count = read(file, &part, part.count)
        if count < 0 { throw ErrnoError(errno) }
        return Array(part.prefix(count))
      }
    }
    if part.isEmpty { break }
    try connection.write(part)
  }
  try connection.shutdownWrite()
}

@Suite("What the recipe about files shows", .timeLimit(.minutes(10)))
struct RecipeSnippets {
  @Test func `a file of several parts arrives as it is`() async throws {
    let text = (1...40_000).map { "line \($0)\n" }.joined()
    let path = freshPath("streamed")
    let file = try #require(fopen(path, "w"))
    fputs(text, file)
    fclose(file)
    defer { unlink(path) }
    try await co_launch {
      let (sender, receiver) = try Connection.pair()
      let job = co_launch { try stream(path, to: sender) }
      var reader = BufferedReader(receiver)
      let bytes = try reader.readAll(max: 1_000_000)
      try job.join()
      #expect(bytes.count > 65_536 * 2 && String(decoding: bytes, as: UTF8.self) == text)
    }.value
  }
}
