// What each command does, in Redis's words: https://redis.io/commands.

extension Interpreter {
  mutating func perform(_ command: Command, _ words: Words) throws(Refusal) {
    switch command {
    case .get: try get(words[0])
    case .set: try set(words)
    case .lpush: try push(words, .left)
    case .rpush: try push(words, .right)
    case .lpop: try pop(words, .left)
    case .rpop: try pop(words, .right)
    case .incr: try add(words[0], 1)
    case .decr: try add(words[0], -1)
    case .incrby: try add(words[0], number(words[1]))
    case .decrby: try add(words[0], negative(number(words[1])))
    case .del: count(words) { $0.remove($1) }
    case .exists: count(words) { $0[$1] != nil }
    case .llen: replies.integer(try on(words[0]) { (store) throws(Refusal) in try store.list(words[0])?.count ?? 0 })
    case .lrange: try range(words)
    case .mget: values(words)
    case .type: type(words[0])
    case .append: try append(words)
    case .strlen: replies.integer(try on(words[0]) { (store) throws(Refusal) in try store.text(words[0])?.count ?? 0 })
    default: performOther(command, words)
    }
  }

  private mutating func performOther(_ command: Command, _ words: Words) {
    switch command {
    case .ping: if let word = words.first { replies.text(word) } else { replies.raw("+PONG\r\n") }
    case .echo: replies.text(words[0])
    case .dbsize:
      var count = 0
      owner.useAll { count += $0.count }
      replies.integer(count)
    case .flushall, .flushdb:
      owner.useAll { $0.removeAll() }
      replies.ok()
    case .select:
      if words[0].number == 0 { replies.ok() } else { replies.error("ERR DB index is out of range") }
    case .config:
      // redis-benchmark asks how the server saves.
      guard words.count == 2, words[0].spell("GET") else { return replies.error("ERR only CONFIG GET is known") }
      replies.array(2)
      replies.text(words[1])
      replies.text([])
    case .command: replies.array(0)
    case .client: replies.ok()
    case .info: replies.text(Array("redis_version:7.0.0\r\nredis_mode:standalone\r\n".utf8))
    case .hello: replies.error("NOPROTO unsupported protocol version")
    case .quit:
      replies.ok()
      end()
    default: replies.error(Refusal.syntax.text)
    }
  }

  /// Calls `body` with the data of a key, and returns its result.
  private func on<R>(_ key: Bytes, _ body: (Store) throws(Refusal) -> R) throws(Refusal) -> R {
    var result: Result<R, Refusal>?
    owner.use(key) { store in
      do throws(Refusal) { result = .success(try body(store)) } catch { result = .failure(error) }
    }
    // `use` has called its closure.
    return try result.unsafelyUnwrapped.get()
  }

  private func number(_ word: Bytes) throws(Refusal) -> Int {
    guard let number = word.number else { throw .notInteger }
    return number
  }

  private func negative(_ number: Int) throws(Refusal) -> Int {
    if number == .min { throw .negative }
    return -number
  }

  // MARK: Texts

  private mutating func get(_ key: Bytes) throws(Refusal) {
    if let text = try on(key, { (store) throws(Refusal) in try store.text(key) }) {
      replies.text(text)
    } else {
      replies.null()
    }
  }

  private mutating func set(_ words: Words) throws(Refusal) {
    var onlyNew = false
    var onlyOld = false
    var returnsOld = false
    for option in words.dropFirst(2) {
      if option.spell("NX") {
        onlyNew = true
      } else if option.spell("XX") {
        onlyOld = true
      } else if option.spell("GET") {
        returnsOld = true
      } else {
        throw .syntax
      }
    }
    if onlyNew && onlyOld { throw .syntax }
    guard onlyNew || onlyOld || returnsOld else {
      owner.use(words[0]) { $0.set(words[0], .text([UInt8](words[1]))) }
      return replies.ok()
    }
    let (old, isSet) = try on(words[0]) { (store) throws(Refusal) in
      let old = returnsOld ? try store.text(words[0]) : nil
      let isThere = store[words[0]] != nil
      let sets = isThere ? !onlyNew : !onlyOld
      if sets { store.set(words[0], .text([UInt8](words[1]))) }
      return (old, sets)
    }
    if !returnsOld && isSet {
      replies.ok()
    } else if let old {
      replies.text(old)
    } else {
      replies.null()
    }
  }

  private mutating func append(_ words: Words) throws(Refusal) {
    replies.integer(
      try on(words[0]) { (store) throws(Refusal) in
        let text = try (store.text(words[0]) ?? []) + words[1]
        store.set(words[0], .text(text))
        return text.count
      }
    )
  }

  private mutating func add(_ key: Bytes, _ difference: Int) throws(Refusal) {
    replies.integer(
      try on(key) { (store) throws(Refusal) in
        var number = 0
        if let text = try store.text(key) {
          guard let old = text.withUnsafeBytes({ $0.number }) else { throw .notInteger }
          number = old
        }
        let (sum, overflow) = number.addingReportingOverflow(difference)
        if overflow { throw .overflow }
        store.set(key, .text(Array(String(sum).utf8)))
        return sum
      }
    )
  }

  private mutating func values(_ keys: Words) {
    replies.array(keys.count)
    for key in keys {
      if case .text(let text)? = try? on(key, { (store) throws(Refusal) in store[key] }) {
        replies.text(text)
      } else {
        replies.null()
      }
    }
  }

  // MARK: Keys

  private mutating func count(_ keys: Words, _ body: (Store, Bytes) -> Bool) {
    var count = 0
    for key in keys { owner.use(key) { if body($0, key) { count += 1 } } }
    replies.integer(count)
  }

  private mutating func type(_ key: Bytes) {
    owner.use(key) { store in
      switch store[key] {
      case .text: replies.raw("+string\r\n")
      case .list: replies.raw("+list\r\n")
      case nil: replies.raw("+none\r\n")
      }
    }
  }

  // MARK: Lists

  private mutating func push(_ words: Words, _ end: List.End) throws(Refusal) {
    replies.integer(try on(words[0]) { (store) throws(Refusal) in try store.push(words[0], words.dropFirst(), end) })
  }

  private mutating func pop(_ words: Words, _ end: List.End) throws(Refusal) {
    guard words.count == 2 else {
      if let item = try on(words[0], { (store) throws(Refusal) in try store.pop(words[0], end) }) {
        replies.text(item)
      } else {
        replies.null()
      }
      return
    }
    guard let most = words[1].number, most >= 0 else { throw .notPositive }
    let items = try on(words[0]) { (store) throws(Refusal) -> [[UInt8]]? in
      guard try store.list(words[0]) != nil else { return nil }
      var items: [[UInt8]] = []
      while items.count < most, let item = try store.pop(words[0], end) { items.append(item) }
      return items
    }
    guard let items else { return replies.nullArray() }
    replies.array(items.count)
    for item in items { replies.text(item) }
  }

  private mutating func range(_ words: Words) throws(Refusal) {
    let (start, end) = (try number(words[1]), try number(words[2]))
    let items = try on(words[0]) { (store) throws(Refusal) -> [[UInt8]] in
      guard let list = try store.list(words[0]) else { return [] }
      let first = max(0, start < 0 ? start + list.count : start)
      let last = min(list.count - 1, end < 0 ? end + list.count : end)
      return first <= last ? (first...last).map { list[$0] } : []
    }
    replies.array(items.count)
    for item in items { replies.text(item) }
  }
}
