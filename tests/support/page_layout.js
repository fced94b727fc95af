// Where every part of the page lies: its left edge and its width in pixels, and in which row of the page it begins;
// and the colours of the scheme. Heights are left out: they follow from the fonts of the machine.
const PARTS = ".inner, .brand, #states, #live, #attention > *, #flow, #span, .tile, .picture, #shards, #lanes, #tables, #lookup, "
  + "#look-form .kinds, #look-form .fields, #ddls, #acting-title, footer p";
const counts = {};
const boxes = [...document.querySelectorAll(PARTS)].filter((each) => each.checkVisibility()).map((each) => {
  const kind = each.id ? `#${each.id}` : `${each.tagName.toLowerCase()}.${each.className}`.split(" ")[0];
  counts[kind] = (counts[kind] ?? 0) + 1;
  const { left, width, top } = each.getBoundingClientRect();
  return { name: each.id ? kind : `${kind} ${counts[kind]}`, left: Math.round(left), width: Math.round(width), top };
});
const rows = [];
for (const { top } of [...boxes].sort((one, other) => one.top - other.top)) {
  if (!rows.length || top - rows.at(-1) > 12) rows.push(top);
}
const row = (top) => rows.filter((each) => each <= top).length;
const parts = Object.fromEntries(boxes.map(({ name, left, width, top }) => [name, [left, width, row(top)]]));
const PAINTED = ["body", ".card", ".tile", "h1", ".dim", ".problem", ".problem h2", "button.danger", "input", ".pill", "th", "a"];
const colours = Object.fromEntries(PAINTED.map((css) => {
  const style = getComputedStyle(document.querySelector(css));
  return [css, [style.color, style.backgroundColor, style.borderLeftColor]];
}));
return { parts, colours };
