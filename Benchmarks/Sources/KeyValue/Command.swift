/// The commands that the server knows, the frequent ones first.
enum Command: UInt8, CaseIterable {
  case get, set, lpush, rpush, lpop, rpop, incr, decr, incrby, decrby, del, exists, llen, lrange, mget, type, append
  case strlen, blpop, brpop, ping, echo, dbsize, flushall, flushdb, command, config, client, select, info, hello, quit

  private static let names: [UInt64] = allCases.map { command in
    Array("\(command)".utf8).withUnsafeBytes { $0.packed ?? 0 }
  }

  /// Finds a command by its name, in upper or lower case.
  init?(named word: Bytes) {
    guard let packed = word.packed, let index = Self.names.firstIndex(of: packed) else { return nil }
    self = Self.allCases[index]
  }

  /// The allowed numbers of words after the name.
  var arguments: ClosedRange<Int> {
    switch self {
    case .get, .incr, .decr, .llen, .type, .echo, .strlen, .select: 1...1
    case .incrby, .decrby, .append: 2...2
    case .set: 2...4
    case .lpush, .rpush, .blpop, .brpop: 2...Int.max
    case .del, .exists, .mget: 1...Int.max
    case .lpop, .rpop: 1...2
    case .lrange: 3...3
    case .ping: 0...1
    case .dbsize: 0...0
    case .config, .client: 1...Int.max
    case .flushall, .flushdb, .command, .info, .hello, .quit: 0...Int.max
    }
  }
}
