r"""TeX formulas as Unicode text: `\frac{a}{b} \leq x^2` becomes `a/b ≤ x²`.

It knows what models write in answers. A formula with anything else stays TeX: half a translation
is harder to read than the source.
"""

import re

_OPERAND = re.compile(r"[\d.]*|√?[^\W\d]\w*′*|\([^()]*\)")
_TOKEN = re.compile(r"\\[A-Za-z]+|\\.|[{}^_]|\s+|[^\\{}^_\s]", re.DOTALL)


def _table(text: str) -> dict[str, str]:
    """Return `{"pi": "π"}` of `pi:π`."""
    names, signs = zip(*(pair.split(":", 1) for pair in text.split()), strict=True)
    return dict(zip(names, signs, strict=True))


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SYMBOLS = _table(
    "alpha:α beta:β gamma:γ delta:δ epsilon:ε varepsilon:ε zeta:ζ eta:η theta:θ vartheta:ϑ "
    "iota:ι kappa:κ lambda:λ mu:μ nu:ν xi:ξ pi:π rho:ρ sigma:σ tau:τ upsilon:υ phi:φ "
    "varphi:φ chi:χ psi:ψ omega:ω Gamma:Γ Delta:Δ Theta:Θ Lambda:Λ Xi:Ξ Pi:Π Sigma:Σ "
    "Upsilon:Υ Phi:Φ Psi:Ψ Omega:Ω sum:∑ prod:∏ int:∫ iint:∬ oint:∮ infty:∞ partial:∂ "
    "nabla:∇ forall:∀ exists:∃ emptyset:∅ varnothing:∅ ell:ℓ hbar:ℏ Re:ℜ Im:ℑ aleph:ℵ "
    "angle:∠ degree:° circ:∘ prime:′ dots:… ldots:… cdots:⋯ vdots:⋮ ddots:⋱ triangle:△ "
    "lfloor:⌊ rfloor:⌋ lceil:⌈ rceil:⌉ langle:⟨ rangle:⟩ vert:| Vert:‖ lvert:| rvert:| "
    "neg:¬ lnot:¬ top:⊤ bot:⊥ checkmark:✓ star:⋆ bullet:• dagger:† blacksquare:■ "
    "square:□ Box:□"
)
_RELATIONS = _table(  # with blanks around them
    "leq:≤ le:≤ geq:≥ ge:≥ neq:≠ ne:≠ approx:≈ equiv:≡ sim:∼ simeq:≃ cong:≅ propto:∝ ll:≪ "
    "gg:≫ times:× div:÷ pm:± mp:∓ cdot:· ast:∗ to:→ rightarrow:→ leftarrow:← Rightarrow:⇒ "
    "Leftarrow:⇐ leftrightarrow:↔ Leftrightarrow:⇔ iff:⇔ implies:⇒ mapsto:↦ "
    "longrightarrow:⟶ in:∈ notin:∉ ni:∋ subset:⊂ subseteq:⊆ supset:⊃ supseteq:⊇ cup:∪ "
    "cap:∩ setminus:∖ land:∧ wedge:∧ lor:∨ vee:∨ oplus:⊕ otimes:⊗ mid:| parallel:∥ perp:⊥ "
    "vdash:⊢ models:⊨ uparrow:↑ downarrow:↓ therefore:∴ because:∵ bmod:mod"
)
_FUNCTIONS = _names(
    "sin cos tan cot sec csc arcsin arccos arctan sinh cosh tanh log ln lg exp lim max min sup inf "
    "det dim ker gcd arg Pr deg"
)
_PLAIN = _names("text mathrm mathbf mathit mathsf boldsymbol operatorname textbf")
_IGNORED = _names("left right big Big bigg Bigg bigl bigr Bigl Bigr displaystyle textstyle limits")
_BLANKS = frozenset(("\\,", "\\;", "\\:", "\\ ", "\\quad", "\\qquad", "~"))
_LETTERS = {"C": "ℂ", "N": "ℕ", "P": "ℙ", "Q": "ℚ", "R": "ℝ", "Z": "ℤ"}  # of \mathbb
_ACCENTS = {"hat": "\u0302", "bar": "\u0304", "vec": "\u20d7", "dot": "\u0307", "tilde": "\u0303"}
_ACCENTS |= {"overline": "\u0305"}
_SUPERSCRIPTS = str.maketrans(
    "0123456789+-=()abcdefghijklmnoprstuvwxyzTABDEGHIJKLMNOPRUVW*′∘",
    "⁰¹²³⁴⁵⁶⁷⁸⁹⁺⁻⁼⁽⁾ᵃᵇᶜᵈᵉᶠᵍʰⁱʲᵏˡᵐⁿᵒᵖʳˢᵗᵘᵛʷˣʸᶻᵀᴬᴮᴰᴱᴳᴴᴵᴶᴷᴸᴹᴺᴼᴾᴿᵁⱽᵂ*′°",
)
_SUBSCRIPTS = str.maketrans("0123456789+-=()aehijklmnoprstuvx", "₀₁₂₃₄₅₆₇₈₉₊₋₌₍₎ₐₑₕᵢⱼₖₗₘₙₒₚᵣₛₜᵤᵥₓ")


class UnknownTexError(ValueError):
    """A formula has a command that has no counterpart in Unicode."""


def unicode_of(source: str) -> str:
    """Return a formula without delimiters as Unicode. Raises `UnknownTexError`."""
    reader = _Reader(_TOKEN.findall(source.strip()))
    text = reader.read_until("")
    return re.sub(r" *\n\s*", "\n", re.sub(r" {2,}", " ", text)).strip()


class _Reader:
    """Translates tokens from left to right."""

    def __init__(self, tokens: list[str]) -> None:
        self._tokens = tokens
        self._at = 0

    def read_until(self, end: str) -> str:
        """Return the text up to a token, or to the end of the formula."""
        text = ""
        while self._at < len(self._tokens):
            if self._tokens[self._at] == end:
                self._at += 1
                break
            text += self._next()
        return text

    def _argument(self) -> str:
        while self._at < len(self._tokens) and self._tokens[self._at].isspace():
            self._at += 1
        return self._next() if self._at < len(self._tokens) else ""

    def _raw_argument(self) -> str:
        """Return a group in braces as it stands: its blanks count."""
        tokens = self._tokens[self._at :]
        if not tokens or tokens[0] != "{" or "}" not in tokens:
            return self._argument()
        end = tokens.index("}")
        if any(token.startswith("\\") or token in "{$" for token in tokens[1:end]):
            raise UnknownTexError(tokens[0])
        self._at += end + 1
        return "".join(tokens[1:end])

    def _next(self) -> str:
        token = self._tokens[self._at]
        self._at += 1
        if token == "{":
            return self.read_until("}")
        if token in "^_":
            return _script(token, self._argument())
        if token.isspace():
            return "\n" if "\n" in token else " "
        if token in "=<>":
            return f" {token} "
        if token in _BLANKS:
            return " "
        if len(token) == 1:
            if token == "&" or token == "}":
                raise UnknownTexError(token)
            return "′" if token == "'" else token
        return self._command(token[1:])

    def _command(self, name: str) -> str:
        if name in _SYMBOLS:
            return _SYMBOLS[name]
        if name in _RELATIONS:
            return f" {_RELATIONS[name]} "
        if name in _FUNCTIONS:
            return f"{name} " if self._is_before_letter() else name
        if name in _PLAIN:
            return self._raw_argument()
        if name in _IGNORED or name == "!":
            return ""
        if name in ("frac", "dfrac", "tfrac"):
            return f"{_grouped(self._argument())}/{_grouped(self._argument())}"
        if name == "sqrt":
            return self._root()
        if name == "binom":
            return f"C({self._argument()}, {self._argument()})"
        if name == "mathbb":
            letter = self._argument()
            return _LETTERS.get(letter, letter)
        if name in ("mathcal", "boxed"):
            return self._argument()
        if name in _ACCENTS and len(base := self._argument()) == 1:
            return base + _ACCENTS[name]
        if name in ("{", "}", "%", "$", "#", "&", "_"):
            return name
        if name == "|":
            return "‖"
        if name == "\\":
            return "\n"
        raise UnknownTexError(name)

    def _is_before_letter(self) -> bool:
        following = self._tokens[self._at : self._at + 1]
        return following != [] and following[0].removeprefix("\\")[:1].isalnum()

    def _root(self) -> str:
        if self._tokens[self._at : self._at + 1] == ["["]:
            self._at += 1
            degree = self.read_until("]").strip()
            root = {"2": "√", "3": "∛", "4": "∜"}.get(degree)
            if root is None:
                raise UnknownTexError("sqrt")
        else:
            root = "√"
        return root + _grouped(self._argument())


def _script(mark: str, text: str) -> str:
    text = text.replace(" ", "")
    table = _SUPERSCRIPTS if mark == "^" else _SUBSCRIPTS
    if text and all(ord(character) in table for character in text):
        return text.translate(table)
    return f"{mark}({text})" if len(text) > 1 else f"{mark}{text}"


def _grouped(text: str) -> str:
    """Return an operand in parentheses unless it is a number, a name, or already a group."""
    text = text.strip()
    return text if _OPERAND.fullmatch(text) else f"({text})"
