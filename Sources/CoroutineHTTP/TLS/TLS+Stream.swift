#if HTTP
import COpenSSL
import Coroutine
public import CoroutineNet
import Glibc

// TLS between a program and a connection.
//
//   read:  decrypt what has arrived; if that is nothing, write what OpenSSL has to say, and read from the connection
//   write: encrypt a piece, write the result
//
// One coroutine may read while another one writes. Both may have records for the peer: answers to the peer's key
// updates, and alerts, come from the reader. So the output is written under a lock of coroutines, in the order in which
// OpenSSL made it. The records of one call of `write` are complete when it returns.
//
// Invariants
//  1. A reader waits for the peer's bytes only: neither for the lock of a writer, nor for room in the socket. Otherwise
//     two ends whose writers wait for each other's readers would wait for ever. What it cannot write at once leaves
//     with the next write, before which no peer may expect it (RFC 8446, 4.6.3).
//  2. Who has unlocked `output` looks once more whether OpenSSL has made output meanwhile, and who has made some tries
//     the lock. So one of the two writes it.
//  3. `block` has been taken from OpenSSL and is used under `output`. A write that was given up leaves its rest there,
//     so the records stay whole.

extension TLS {
  /// A connection with TLS: the verbs of `Connection`, with the same promises.
  ///
  /// It is closed with its connection, at the latest when its last reference is released.
  public final class Stream: @unchecked Sendable {
    // Sound because `tls` has its own lock, `block` belongs to the owner of `output`, and the other properties do not
    // change after the handshake; `onEnd` is used by `deinit`, after every other use.
    /// The connection below, for its addresses and options.
    public let connection: Connection
    private let tls: OpaquePointer
    private let output = FairMutex()
    private var block = UnsafeMutableRawBufferPointer(start: nil, count: 0)
    private var blockSent = 0
    /// Receives the session of a client that can be resumed.
    var onEnd: (@Sendable (TLSSessionTicket) -> Void)?

    /// The bytes of one read from the connection: a record at most.
    private static var room: Int { 16_384 + 512 }
    /// The bytes that are encrypted before they are written.
    private static var piece: Int { 65_536 }

    init(_ connection: Connection, _ context: TLSContext, host: String?) throws(TLSError) {
      guard let tls = ctls_create(context.context, host) else { throw TLSError("there was no memory for a connection") }
      self.connection = connection
      self.tls = tls
    }

    deinit {
      keepSession()
      connection.close()
      free(block.baseAddress)
      ctls_destroy(tls)
    }

    /// What the handshake has negotiated.
    public var session: Session {
      var name: UnsafePointer<UInt8>?
      let count = ctls_protocol(tls, &name)
      var certificate: UnsafeMutablePointer<UInt8>?
      let size = ctls_peer_certificate(tls, &certificate)
      defer { free(certificate) }
      return Session(
        version: String(cString: ctls_version(tls)),
        cipher: String(cString: ctls_cipher(tls)),
        applicationProtocol: name.map { String(decoding: UnsafeBufferPointer(start: $0, count: count), as: UTF8.self) },
        serverName: ctls_server_name(tls).map { String(cString: $0) },
        peerCertificate: certificate.map { Array(UnsafeBufferPointer(start: $0, count: size)) },
        isResumed: ctls_is_resumed(tls) == 1
      )
    }

    func resume(_ session: TLSSessionTicket) { ctls_use_session(tls, session.session) }

    private func keepSession() {
      guard let onEnd, let session = ctls_take_session(tls) else { return }
      onEnd(TLSSessionTicket(session))
    }

    // MARK: The handshake

    /// Makes the handshake; `onInput` is called when the peer has sent bytes.
    func handshake(onInput: () throws -> Void = {}) throws {
      while true {
        let result = ctls_handshake(tls)
        // Also the alert that tells the peer of a failure.
        do { try send() } catch { if result != CTLS_FAILED { throw error } }
        switch result {
        case CTLS_DONE: return
        case CTLS_WANTS_INPUT:
          try receiveRecords {}
          try onInput()
        default: throw failure
        }
      }
    }

    /// Adds bytes of the peer that were read before the handshake.
    func add(_ bytes: [UInt8]) {
      guard !bytes.isEmpty else { return }
      bytes.withUnsafeBytes {
        UnsafeMutableRawBufferPointer(start: ctls_room(tls, $0.count), count: $0.count).copyMemory(from: $0)
      }
      ctls_received(tls, bytes.count)
    }

    private var failure: TLSError {
      do {
        return try TLS.checked {
          ctls_copy_error(tls, $0)
          return $0[0] == 0 ? TLSError("the peer has ended TLS") : nil
        }
      } catch {
        return error
      }
    }

    // MARK: Bytes of the connection

    /// Writes what OpenSSL has made for the peer; suspends while the peer takes nothing.
    private func send() throws {
      repeat {
        try output.withLock {
          while let rest = nextOutput() {
            let before = connection.bytesWritten
            defer { blockSent += connection.bytesWritten - before }
            try connection.write(rest)
          }
        }
      } while ctls_has_output(tls) != 0
    }

    /// Writes what OpenSSL has made, as far as that needs no wait; an error shows in the next read or write.
    private func sendNow() {
      while ctls_has_output(tls) != 0, output.tryLock() {
        defer { output.unlock() }
        while let rest = nextOutput() {
          guard let count = try? connection.sendNow(rest), count > 0 else { return }
          blockSent += count
        }
      }
    }

    /// The next bytes for the peer; nil if there are none.
    ///
    /// The caller holds `output`.
    private func nextOutput() -> UnsafeRawBufferPointer? {
      if blockSent == block.count {
        free(block.baseAddress)
        var count = 0
        let bytes = ctls_take_output(tls, &count)
        block = UnsafeMutableRawBufferPointer(start: bytes, count: bytes == nil ? 0 : count)
        blockSent = 0
      }
      return block.isEmpty ? nil : UnsafeRawBufferPointer(rebasing: block[blockSent...])
    }

    private func receiveRecords(_ beforeWaiting: () -> Void) throws {
      let count = try connection.receive {
        ctls_release_room(self.tls)
        beforeWaiting()
      } into: {
        self.roomForRecords
      }
      ctls_received(tls, count)
    }

    private var roomForRecords: UnsafeMutableRawBufferPointer {
      UnsafeMutableRawBufferPointer(start: ctls_room(tls, Self.room), count: Self.room)
    }

    // MARK: Bytes of the program

    /// Reads the bytes that have arrived, as `Connection.read(into:)`; returns 0 when the peer has ended its output.
    ///
    /// - Throws: ``TLSError`` also if the connection ends without that message: bytes may have been cut off.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func read(into buffer: UnsafeMutableRawBufferPointer) throws -> Int { try receive { buffer } }

    /// As ``read(into:)``; `room` gives the memory, which `beforeWaiting` may release.
    func receive(beforeWaiting: () -> Void = {}, into room: () -> UnsafeMutableRawBufferPointer) throws -> Int {
      try co_checkCancelled()
      while true {
        if let count = try decrypt(room()) { return count }
        sendNow()
        try receiveRecords(beforeWaiting)
      }
    }

    func receiveNow(into room: UnsafeMutableRawBufferPointer) throws -> Int? {
      while true {
        if let count = try decrypt(room) { return count }
        guard let count = try connection.receiveNow(into: roomForRecords) else {
          ctls_release_room(tls)
          return nil
        }
        ctls_received(tls, count)
      }
    }

    /// Returns nil if more of the peer's bytes are needed.
    private func decrypt(_ room: UnsafeMutableRawBufferPointer) throws -> Int? {
      if room.count == 0 { return 0 }
      var done = 0
      switch ctls_read(tls, room.baseAddress, room.count, &done) {
      case CTLS_DONE: return done
      case CTLS_WANTS_INPUT: return nil
      case CTLS_ENDED: return 0
      default:
        sendNow()
        throw failure
      }
    }

    /// Reads at most `count` bytes, as `Connection.read(upTo:)`.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func read(upTo count: Int) throws -> [UInt8] {
      guard count > 0 else { return [] }
      return try withUnsafeTemporaryAllocation(byteCount: min(count, Self.room), alignment: 16) {
        let read = try self.read(into: $0)
        return Array($0[..<read])
      }
    }

    /// Writes all of `bytes`, as `Connection.write(_:)`.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func write(_ bytes: some Sequence<UInt8>) throws {
      if try bytes.withContiguousStorageIfAvailable({ try write(UnsafeRawBufferPointer($0)) }) != nil { return }
      let all = Array(bytes)
      try bytes.throwFailure()
      try all.withUnsafeBytes { try write($0) }
    }

    /// Writes all bytes of a buffer, as `Connection.write(_:)`.
    ///
    /// If it throws, the peer may have received a part, and nothing more can be written: close the stream.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func write(_ buffer: UnsafeRawBufferPointer) throws {
      try co_checkCancelled()
      var rest = buffer[...]
      while !rest.isEmpty {
        let part = UnsafeRawBufferPointer(rebasing: rest.prefix(Self.piece))
        guard ctls_write(tls, part.baseAddress, part.count) == CTLS_DONE else { throw failure }
        rest = rest.dropFirst(part.count)
        try send()
      }
    }

    /// Tells the peer that no more bytes follow, and ends the output of the connection; reading remains possible.
    ///
    /// Suspends while the peer takes nothing.
    @available(*, noasync, message: "await the `value` of a coroutine that does this")
    public func shutdownWrite() throws {
      ctls_shutdown(tls)
      try send()
      // A reader may be writing an alert, which would make the connection busy.
      try output.withLock { try connection.shutdownWrite() }
    }

    /// Tells the peer that no more bytes follow, and closes the connection.
    ///
    /// If a write waits, or the system takes no byte now, the peer is not told, and sees that the stream is cut off.
    /// Never suspends; any thread.
    public func close() {
      ctls_shutdown(tls)
      sendNow()
      connection.close()
    }
  }
}
#endif
