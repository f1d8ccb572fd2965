#if Demo
/// The characters that HTML has names for.
///
/// Feeds use them as if XML had them too.
enum HTMLEntities {
  /// The character of `&name;`, `&#8211;` or `&#x2013;`, without the marks around it; nil if there is none.
  static func character(_ name: String) -> String? {
    guard name.hasPrefix("#") else { return named[name] }
    let digits = name.dropFirst()
    let isHexadecimal = digits.first == "x" || digits.first == "X"
    let code = isHexadecimal ? UInt32(digits.dropFirst(), radix: 16) : UInt32(digits)
    return code.flatMap { $0 >= 32 ? Unicode.Scalar($0) : Unicode.Scalar(32) }.map { String(Character($0)) }
  }

  private static let named: [String: String] = {
    var named: [String: String] = [:]
    // Runs of neighbours, each with the code of its first name.
    let runs: [(UInt32, String)] = [
      (34, "quot"), (38, "amp"), (39, "apos"), (60, "lt"), (62, "gt"),
      (160, latin), (338, "OElig oelig"), (352, "Scaron scaron"), (376, "Yuml"), (402, "fnof"), (710, "circ"),
      (732, "tilde"), (913, greek), (8194, "ensp emsp"), (8201, "thinsp"), (8204, "zwnj zwj lrm rlm"),
      (8211, "ndash mdash"), (8216, "lsquo rsquo sbquo"), (8220, "ldquo rdquo bdquo"), (8224, "dagger Dagger bull"),
      (8230, "hellip"), (8240, "permil"), (8242, "prime Prime"), (8249, "lsaquo rsaquo"), (8254, "oline"),
      (8260, "frasl"), (8364, "euro"), (8482, "trade"), (8592, "larr uarr rarr darr harr"), (8722, "minus"),
      (8730, "radic"), (8734, "infin"), (8776, "asymp"), (8800, "ne equiv"), (8804, "le ge"),
      (9824, "spades"), (9827, "clubs"), (9829, "hearts diams"),
    ]
    for (first, names) in runs {
      for (offset, name) in names.split(separator: " ").enumerated() {
        named[String(name)] = Unicode.Scalar(first + UInt32(offset)).map { String(Character($0)) }
      }
    }
    return named
  }()

  private static let latin = """
    nbsp iexcl cent pound curren yen brvbar sect uml copy ordf laquo not shy reg macr deg plusmn sup2 sup3 acute micro para \
    middot cedil sup1 ordm raquo frac14 frac12 frac34 iquest Agrave Aacute Acirc Atilde Auml Aring AElig Ccedil Egrave \
    Eacute Ecirc Euml Igrave Iacute Icirc Iuml ETH Ntilde Ograve Oacute Ocirc Otilde Ouml times Oslash Ugrave Uacute Ucirc \
    Uuml Yacute THORN szlig agrave aacute acirc atilde auml aring aelig ccedil egrave eacute ecirc euml igrave iacute icirc \
    iuml eth ntilde ograve oacute ocirc otilde ouml divide oslash ugrave uacute ucirc uuml yacute thorn yuml
    """

  /// The gap is Unicode's: there is no capital final sigma.
  private static let greek = """
    Alpha Beta Gamma Delta Epsilon Zeta Eta Theta Iota Kappa Lambda Mu Nu Xi Omicron Pi Rho - Sigma Tau Upsilon Phi Chi Psi \
    Omega - - - - - - - alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigmaf \
    sigma tau upsilon phi chi psi omega
    """
}
#endif
