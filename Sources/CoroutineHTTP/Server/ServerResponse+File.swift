#if HTTP
import CLLHTTP
import Coroutine
import CoroutineNet
import Glibc
import HTTPTypes

// A file as a response: the whole, one range, or nothing because the client has it.
//
// The order of the preconditions is that of RFC 9110, 13.2.2. They hold for a response that would be successful
// without them (13.2.1), and a range for 200 alone: a file that is the page of another status is sent whole. Of several
// ranges in one request none is served: the answer is the whole file, which the standard permits.
//
// A file of /proc has contents and no size: it is sent in parts, until its end.

extension ServerResponse {
  /// Sends a file: with sendfile on a plain connection.
  ///
  /// With a successful status, adds `last-modified`, `etag` and `accept-ranges`, and answers conditional requests with
  /// 304 or 412; with 200, requests for one range with 206 or 416. With another status, as of a page for 404, the
  /// file is the body, whatever the conditions are. A file without a size, as those of /proc, is sent in parts.
  /// Suspends while the client takes less than is written; blocks the thread while the disk reads bytes that are not
  /// in memory.
  ///
  /// - Parameters:
  ///   - path: A path of the file system; a path of a request must have been checked before.
  ///   - type: The value of `content-type`; nil leaves it as it is in ``fields``.
  /// - Throws: ``HTTPStatusError`` with 404 if there is no such file, or it is no regular file, or the path has a zero
  ///   byte, which ends it for the system; with 403 if it may not be read. `NetError` with the system's error if it
  ///   cannot be opened for another reason, as without a free descriptor, or cannot be read to its end; in the second
  ///   case the response is incomplete.
  @available(*, noasync, message: "a handler is synchronous: call it there")
  public mutating func sendFile(_ path: String, type: String? = nil) throws {
    // `%00` in a request would name another file: `keys.conf\0.png`.
    guard !path.utf8.contains(0) else { throw HTTPStatusError(.notFound) }
    let file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK)
    guard file >= 0 else {
      switch errno {
      case ENOENT, ENOTDIR, ENAMETOOLONG, ELOOP, ENXIO: throw HTTPStatusError(.notFound)
      case EACCES, EPERM: throw HTTPStatusError(.forbidden)
      // The file may be there: EMFILE, say.
      default: throw NetError(code: errno, "opening a file for", connection.connection.remoteAddress)
      }
    }
    defer { close(file) }
    var info = stat()
    guard fstat(file, &info) == 0, info.st_mode & S_IFMT == S_IFREG else { throw HTTPStatusError(.notFound) }
    if let type { fields[.contentType] = type }
    if info.st_size == 0, try connection.sendParts(of: file, head) { return }
    let size = UInt64(info.st_size)
    guard status.kind == .successful else { return try connection.sendFile(head, file, 0, size) }
    let version = FileVersion(info)
    fields[.lastModified] = version.date
    fields[.eTag] = version.tag
    fields[.acceptRanges] = "bytes"
    switch version.decide(connection, size, mayBePart: status.code == 200) {
    case .whole: try connection.sendFile(head, file, 0, size)
    case .range(let first, let count):
      status = .partialContent
      fields[.contentRange] = "bytes \(first)-\(first + count - 1)/\(size)"
      try connection.sendFile(head, file, first, count)
    case .unsatisfiable:
      fields[.contentRange] = "bytes */\(size)"
      try sendNothing(.rangeNotSatisfiable)
    case .notModified: try sendNothing(.notModified)
    case .failed: try sendNothing(.preconditionFailed)
    }
  }

  private var head: Head { Head(status: status, fields: fields, type: nil) }

  private mutating func sendNothing(_ status: HTTPResponse.Status) throws {
    self.status = status
    try send([])
  }
}

/// What identifies the contents of a file.
private struct FileVersion {
  let seconds: Int64
  /// Nil if HTTP has no date for the time: it has those of the years 1000 to 9999.
  let date: String?
  let tag: String

  enum Decision {
    case whole, notModified, failed, unsatisfiable
    case range(UInt64, UInt64)
  }

  init(_ info: stat) {
    let seconds = Int64(info.st_mtim.tv_sec)
    self.seconds = seconds
    date = withUnsafeTemporaryAllocation(of: CChar.self, capacity: 29) { text in
      if chttp_format_time(seconds, text.baseAddress) == 0 { return nil }
      return String(decoding: UnsafeRawBufferPointer(text), as: UTF8.self)
    }
    // A time before 1970 is negative.
    let parts = [UInt64(info.st_ino), UInt64(bitPattern: Int64(info.st_size)), UInt64(bitPattern: seconds)]
    tag =
      "\"" + parts.map { String($0, radix: 16) }.joined(separator: "-")
      + "-\(String(info.st_mtim.tv_nsec, radix: 16))\""
  }

  func decide(_ connection: HTTPConnection, _ size: UInt64, mayBePart: Bool) -> Decision {
    let isRead = connection.method.elementsEqual("GET".utf8) || connection.method.elementsEqual("HEAD".utf8)
    if let tags = connection.values(of: .ifMatch) {
      if !matches(tags, isWeak: false) { return .failed }
    } else if let limit = time(connection, .ifUnmodifiedSince), seconds > limit {
      return .failed
    }
    if let tags = connection.values(of: .ifNoneMatch) {
      if matches(tags, isWeak: true) { return isRead ? .notModified : .failed }
    } else if isRead, let limit = time(connection, .ifModifiedSince), seconds <= limit {
      return .notModified
    }
    guard mayBePart, connection.method.elementsEqual("GET".utf8), let range = connection.values(of: .range) else {
      return .whole
    }
    if let condition = connection.values(of: .ifRange), condition != tag, condition != date { return .whole }
    return Self.range(range, size)
  }

  private func time(_ connection: HTTPConnection, _ name: HTTPField.Name) -> Int64? {
    guard let text = connection.values(of: name) else { return nil }
    var seconds: Int64 = 0
    return chttp_parse_time(text, &seconds) == 0 ? nil : seconds
  }

  private func matches(_ tags: String, isWeak: Bool) -> Bool {
    tags.split(separator: ",").contains {
      var candidate = $0.drop { $0 == " " || $0 == "\t" }
      while candidate.last == " " || candidate.last == "\t" { candidate.removeLast() }
      if candidate == "*" { return true }
      if isWeak, candidate.hasPrefix("W/") { candidate = candidate.dropFirst(2) }
      return candidate == tag
    }
  }

  /// One range of bytes; a field that is not understood is ignored.
  private static func range(_ text: String, _ size: UInt64) -> Decision {
    guard text.lowercased().hasPrefix("bytes=") else { return .whole }
    let parts = text.dropFirst(6).split(separator: "-", omittingEmptySubsequences: false)
    func number(_ text: Substring) -> UInt64? { text.utf8.allSatisfy { $0 >= 0x30 && $0 <= 0x39 } ? UInt64(text) : nil }
    guard parts.count == 2, !parts[0].isEmpty || !parts[1].isEmpty else { return .whole }
    if parts[0].isEmpty {
      guard let last = number(parts[1]) else { return .whole }
      if last == 0 || size == 0 { return .unsatisfiable }
      return .range(size - min(last, size), min(last, size))
    }
    guard let first = number(parts[0]) else { return .whole }
    guard let last = parts[1].isEmpty ? UInt64.max : number(parts[1]), last >= first else { return .whole }
    if first >= size { return .unsatisfiable }
    return .range(first, min(last, size - 1) - first + 1)
  }
}

extension HTTPConnection {
  func sendFile(_ head: ServerResponse.Head, _ file: Int32, _ offset: UInt64, _ count: UInt64) throws {
    try checkIsNew()
    try appendHead(head, head.isBodiless ? .none : .length(count))
    exchange.phase = .ended
    try writing {
      try flush()
      if message?.pointee.is_head == 1 || count == 0 || head.isBodiless { return }
      guard transport.tls != nil else {
        return try transport.connection.sendFile(file, offset: Int64(offset), count: Int(count))
      }
      try sendByReading(file, offset, count)
    }
  }

  /// Sends a file whose size is not known; returns false, and sends nothing, if it is empty.
  func sendParts(of file: Int32, _ head: ServerResponse.Head) throws -> Bool {
    try checkIsNew()
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 65_536, alignment: 16)
    defer { buffer.deallocate() }
    while true {
      let count = read(file, buffer.baseAddress, buffer.count)
      if count < 0 {
        // If the response has begun, the client sees that it is incomplete.
        throw NetError(code: errno, "reading a file for", transport.connection.remoteAddress)
      }
      if count == 0, exchange.phase == .new { return false }
      if count == 0 { break }
      try write(head, UnsafeRawBufferPointer(rebasing: buffer[..<count]))
    }
    try finishResponse(head, nil)
    return true
  }

  /// Over TLS the bytes must be encrypted.
  private func sendByReading(_ file: Int32, _ offset: UInt64, _ count: UInt64) throws {
    var sent: UInt64 = 0
    let buffer = UnsafeMutableRawBufferPointer.allocate(byteCount: 65_536, alignment: 16)
    defer { buffer.deallocate() }
    while sent < count {
      let most = Int(min(count - sent, UInt64(buffer.count)))
      let read = pread(file, buffer.baseAddress, most, off_t(offset + sent))
      if read < 0 { throw NetError(code: errno, "reading a file for", transport.connection.remoteAddress) }
      if read == 0 { throw NetError.endOfStream }
      try transport.write(UnsafeRawBufferPointer(rebasing: buffer[..<read]))
      sent += UInt64(read)
    }
  }
}
#endif
