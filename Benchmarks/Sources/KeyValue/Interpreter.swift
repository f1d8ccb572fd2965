/// Performs the commands of one connection, and collects their replies; never waits.
struct Interpreter<Data: Owner> {
  let owner: Data
  var replies = Replies()
  /// Whether the connection ends after these replies.
  private(set) var isOver = false
  private var request = Request()

  init(_ owner: Data) { self.owner = owner }

  /// Performs the commands in `bytes`, up to one that may have to wait, which is returned.
  ///
  /// Also returns how many bytes the commands have.
  mutating func performAll(_ bytes: Bytes) -> (count: Int, blocking: BlockingPop?) {
    var done = 0
    while !isOver, done < bytes.count {
      let rest = Bytes(rebasing: bytes[done...])
      switch request.read(rest) {
      case .incomplete: return (done, nil)
      case .wrong(let text):
        replies.error(text)
        isOver = true
      case .complete(let count):
        done += count
        if let blocking = perform(rest) { return (done, blocking) }
      }
    }
    return (done, nil)
  }

  private mutating func perform(_ bytes: Bytes) -> BlockingPop? {
    if request.words.isEmpty { return nil }
    let words = Words(bytes: bytes, ranges: request.words)
    guard let command = Command(named: words.name) else {
      replies.error(Self.unknown(words))
      return nil
    }
    guard command.arguments.contains(words.count) else {
      replies.error("ERR wrong number of arguments for '\(command)' command")
      return nil
    }
    do throws(Refusal) {
      switch command {
      case .blpop: return try BlockingPop(words, .left)
      case .brpop: return try BlockingPop(words, .right)
      default: try perform(command, words)
      }
    } catch {
      replies.error(error.text)
    }
    return nil
  }

  private static func unknown(_ words: Words) -> String {
    let shown = words.map { "'\(String(decoding: $0.prefix(128), as: UTF8.self))' " }
    let name = String(decoding: words.name.prefix(128), as: UTF8.self)
    return "ERR unknown command '\(name)', with args beginning with: \(shown.joined())"
  }

  mutating func end() { isOver = true }
}

/// The words of a command after its name.
struct Words: RandomAccessCollection {
  fileprivate let bytes: Bytes
  fileprivate let ranges: [Range<Int>]

  var name: Bytes { Bytes(rebasing: bytes[ranges[0]]) }
  var startIndex: Int { 0 }
  var endIndex: Int { ranges.count - 1 }
  subscript(index: Int) -> Bytes { Bytes(rebasing: bytes[ranges[index + 1]]) }
}
