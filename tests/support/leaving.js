// What leaves its card to the right, and what is cut without saying the whole of it in a title.
const CARDS = ".card, .tile, .problem, .notice, .txn, .inner, dialog[open]";
const wrong = [];
const name = (element) => `${element.tagName.toLowerCase()}.${element.className}: ${element.textContent.trim().slice(0, 60)}`;
for (const card of document.querySelectorAll(CARDS)) {
  if (!card.checkVisibility()) continue;
  const edge = card.getBoundingClientRect().right + 0.5;
  if (edge > innerWidth + 1) wrong.push(`leaves the window: ${name(card)}`);
  for (const each of card.querySelectorAll("*")) {
    if (!each.checkVisibility() || each.closest(".hidden, .jump, svg") || each.matches("option")) continue;
    const scroller = each.parentElement.closest(".scroll");
    const within = scroller && card.contains(scroller) ? scroller.scrollWidth + scroller.getBoundingClientRect().left + 0.5 : edge;
    if (each.getBoundingClientRect().right > within) wrong.push(`leaves its card: ${name(each)}`);
    const style = getComputedStyle(each);
    const isCut = each.scrollWidth > each.clientWidth + 1 && ["hidden", "clip"].includes(style.overflowX);
    if (isCut && !each.title) wrong.push(`is cut: ${name(each)}`);
    if (each.matches(".scroll") && innerWidth >= 1024 && each.scrollWidth > each.clientWidth) wrong.push(`is wider than its card: ${name(each)}`);
    if (each.matches(".tile strong") && each.clientHeight > 1.6 * parseFloat(style.lineHeight)) wrong.push(`takes lines: ${name(each)}`);
  }
}
const shown = [...document.querySelectorAll(".card, .tile, .problem, .notice, header.top")].filter((each) => each.checkVisibility() && !each.closest("dialog"));
for (const [at, one] of shown.entries()) {
  for (const other of shown.slice(at + 1)) {
    if (one.contains(other) || one.matches("header") || other.matches("header")) continue;
    const [a, b] = [one.getBoundingClientRect(), other.getBoundingClientRect()];
    const isApart = a.right <= b.left + 0.5 || b.right <= a.left + 0.5 || a.bottom <= b.top + 0.5 || b.bottom <= a.top + 0.5;
    if (!isApart) wrong.push(`lie on each other: ${name(one)} and ${name(other)}`);
  }
}
return wrong;
