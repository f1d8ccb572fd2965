#if HTTP
// A request and its response.
//
//   response:  NEW --- send, or an error's answer ------------------> ENDED
//              NEW --- write: the head is sent --> BODY --- finish --> ENDED
//
// The framing of a body: its declared length; or in chunks; or, for HTTP/1.0, until the connection closes. A response
// to HEAD, and one with status 1xx, 204 or 304, has no body: what is written is dropped.

struct Exchange {
  enum Phase { case new, body, ended }
  enum Framing {
    case none, chunked, untilClose
    case length(UInt64)
  }
  enum Body { case ended, length, chunks }

  // The request.
  var body = Body.ended
  /// Of a body with a length, the bytes that were not read.
  var remaining: UInt64 = 0
  var received = 0
  /// Bytes of chunk sizes and extensions.
  var framingBytes = 0
  var expectsContinue = false
  /// The part of the target that a request in absolute form has before the path; nil in other forms.
  var authority: Range<Int>?
  var path = 0..<0
  var query: Range<Int>?

  // The response.
  var phase = Phase.new
  var framing = Framing.none
  var written: UInt64 = 0
  var keepsAlive = false
  /// Whether a write has failed, or the response must not be completed.
  var isBroken = false
  /// Whether a field was refused: the answer is 500.
  var isRefused = false
  var isUpgraded = false

  var hasBegun: Bool { phase != .new }

  mutating func begin() { self = Exchange() }
}
#endif
