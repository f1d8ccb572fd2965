#if Demo
import Foundation

/// What a site said about the version of a feed it gave, to be asked with next time.
///
/// Any other version is then sent again, this one is not.
struct Validators: Equatable, Sendable {
  var etag: String?
  var modified: String?
}

/// A feed that has been opened: what is needed to read it.
struct FeedDocument {
  let bytes: any ByteSource
  /// Where it came from in the end, after all redirects.
  var base: URL?
  var charset: String?
  /// How many bytes there will be, where that is known.
  var expectedBytes: Int?
  var validators = Validators()
  /// Ends what is still arriving.
  var close: () -> Void
}
#endif
